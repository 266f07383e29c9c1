// The cookie bar, and the dialog with its settings. The choice is kept for the session, as a cookie of the site.
import { make } from "./parts.js";

function keep(choice) {
  document.cookie = `consent=${choice}; path=/; samesite=lax`;
  document.querySelector(".consent").remove();
}

function settings() {
  const save = make("button", { type: "button" }, "Save choice");
  const dialog = make("dialog", { "aria-label": "Cookie settings" }, make("h2", {}, "Cookie settings"));
  const kinds = { necessary: "Strictly necessary", statistics: "Statistics", marketing: "Marketing" };
  for (const [kind, text] of Object.entries(kinds)) {
    const always = kind === "necessary";
    const box = make("input", { type: "checkbox", value: kind, checked: always, disabled: always });
    dialog.append(make("label", { class: "row" }, box, text));
  }
  save.addEventListener("click", () => {
    keep([...dialog.querySelectorAll(":checked")].map((box) => box.value).join("-"));
    dialog.close();
  });
  dialog.addEventListener("close", () => dialog.remove());
  dialog.append(make("p", { class: "row" }, save));
  document.body.append(dialog);
  dialog.showModal();
}

export function consent(root) {
  for (const button of root.querySelectorAll("[data-consent]")) {
    const { consent: choice } = button.dataset;
    button.addEventListener("click", () => (choice === "settings" ? settings() : keep(choice)));
  }
}
