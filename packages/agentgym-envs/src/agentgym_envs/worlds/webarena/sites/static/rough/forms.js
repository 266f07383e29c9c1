// Forms to fill in open as dialogs, and these and all that delete or end something ask once more, in a second dialog.
import { make, textOf } from "./parts.js";

const FIELDS = 3;
const GRAVE = /^(delete|remove|cancel|ban|block|hold|close|unsubscribe|revoke|merge|leave|empty|reject|refund)\b/i;
const confirmed = new WeakSet();

export function forms(root) {
  for (const form of root.querySelectorAll("main form[method=post]")) if (folds(form)) fold(form);
}

const submitOf = (form) => form.querySelector("button:not([type=button])");

function folds(form) {
  const fields = [...form.querySelectorAll("input:not([type=hidden]), select, textarea")];
  const unfit = form.closest("table, dialog, li, article") || form.querySelector("table, [data-filters]");
  return !unfit && fields.length >= FIELDS && submitOf(form) !== null;
}

function fold(form) {
  const name = textOf(submitOf(form));
  const opener = make("button", { type: "button", class: "opener", "aria-haspopup": "dialog", "aria-expanded": "false" }, `${name}…`);
  const close = make("button", { type: "button", class: "plain", title: "Close" }, make("span", { "aria-hidden": "true" }, "✕"));
  const dialog = make("dialog", { class: "sheet", "aria-label": name }, make("p", { class: "row end" }, close));
  const open = () => {
    dialog.showModal();
    opener.setAttribute("aria-expanded", "true");
  };
  opener.addEventListener("click", open);
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => opener.setAttribute("aria-expanded", "false"));
  form.dataset.asks = "";
  form.before(opener, dialog);
  dialog.append(form);
  if (document.querySelector("main [role=alert]")) open(); // it came back with errors
}

document.addEventListener("submit", (event) => {
  const { target: form, submitter } = event;
  if (confirmed.delete(form) || form.method !== "post") return;
  if (!("asks" in form.dataset) && !(submitter && GRAVE.test(textOf(submitter)))) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  ask(form, submitter);
}, true);

function ask(form, submitter) {
  const yes = make("button", { type: "button" }, "Confirm");
  const no = make("button", { type: "button", class: "plain" }, "Not now");
  const dialog = make("dialog", { class: "ask", "aria-label": "Confirmation" },
    make("p", {}, `Please confirm: ${textOf(submitter ?? submitOf(form))}?`), make("p", { class: "row" }, yes, no));
  yes.addEventListener("click", () => {
    dialog.close();
    confirmed.add(form);
    form.requestSubmit(submitter);
  });
  no.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
