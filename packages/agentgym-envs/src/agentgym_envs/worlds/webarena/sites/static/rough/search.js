// Search fields: suggestions a moment after one has stopped to type.
import { make, popup, wait } from "./parts.js";

const DEBOUNCE = 250;

export function searches(root) {
  for (const field of root.querySelectorAll("form[role=search] input")) dress(field);
}

function dress(field) {
  let latest = 0;
  let list = null;
  const close = () => {
    list?.close();
    list = null;
  };
  field.autocomplete = "off";
  field.setAttribute("aria-autocomplete", "list");
  field.addEventListener("input", async () => {
    const turn = ++latest;
    await wait(DEBOUNCE);
    if (turn !== latest) return;
    const found = await suggested(field.value.trim());
    if (turn !== latest) return;
    close();
    if (found.length === 0) return;
    list = popup(field, { class: "suggested", role: "group", "aria-label": "Suggestions" });
    list.box.append(...found.map(({ text, href }) => make("a", { href }, text)));
    list.open();
  });
  field.addEventListener("keydown", ({ key }) => {
    if (!["Enter", "Escape", "Tab"].includes(key)) return;
    latest++;
    if (key !== "Escape") close();
  });
}

async function suggested(words) {
  return words.length < 2 ? [] : (await fetch(`/suggestions?q=${encodeURIComponent(words)}`)).json();
}
