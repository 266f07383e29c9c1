// Search fields: suggestions a moment after one has stopped to type.
import { make, popup, wait } from "./parts.js";

const DEBOUNCE = 250;

export function searches(root) {
  for (const field of root.querySelectorAll("form[role=search] input")) dress(field);
}

function dress(field) {
  let latest = 0;
  let list = null;
  field.autocomplete = "off";
  field.setAttribute("aria-autocomplete", "list");
  const close = () => {
    list?.close();
    list = null;
  };
  field.addEventListener("input", async () => {
    const turn = ++latest;
    await wait(DEBOUNCE);
    const words = field.value.trim();
    if (turn !== latest) return;
    const found = words.length < 2 ? [] : await (await fetch(`/suggestions?q=${encodeURIComponent(words)}`)).json();
    if (turn !== latest) return;
    close();
    if (found.length === 0) return;
    list = popup(field, { class: "popup suggested", role: "group", "aria-label": "Suggestions" }, "manual");
    list.box.append(...found.map(({ text, href }) => make("a", { href }, text)));
    list.open();
  });
  document.addEventListener("pointerdown", ({ target }) => { if (list && !list.box.contains(target)) close(); }, true);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && list) event.preventDefault();
    if (event.key === "Escape" || event.key === "Enter" || event.key === "Tab") {
      latest++;
      close();
    }
  });
}
