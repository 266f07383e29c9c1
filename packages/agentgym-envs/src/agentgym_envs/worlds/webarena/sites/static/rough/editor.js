// Long texts: an editor with a toolbar, which writes into the form's own field.
import { changed, make, nameOf } from "./parts.js";

const MARKS = { Bold: ["B", "**", "**"], Italic: ["I", "*", "*"], Quote: ["”", "\n> ", "\n"], Code: ["‹›", "`", "`"] };

export function editors(root) {
  for (const area of root.querySelectorAll("textarea")) dress(area);
}

function dress(area) {
  const name = nameOf(area);
  const box = make("div", {
    class: "editor", contenteditable: area.disabled || area.readOnly ? "false" : "plaintext-only",
    role: "textbox", "aria-multiline": "true", "aria-label": name,
  });
  const prompt = () => { box.dataset.prompt = area.value ? "" : area.placeholder; };
  box.textContent = area.value;
  prompt();
  const read = () => {
    area.value = textIn(box);
    prompt();
    changed(area, "input", "change");
  };
  box.addEventListener("input", read);
  const bar = make("div", { class: "editor-bar row", role: "toolbar", "aria-label": `Formatting of ${name}` });
  for (const [title, [sign, before, after]] of Object.entries(MARKS)) {
    const button = make("button", { type: "button", class: "plain", title }, make("span", { "aria-hidden": "true" }, sign));
    button.addEventListener("mousedown", (event) => event.preventDefault()); // keeps the selection
    button.addEventListener("click", () => {
      box.focus();
      document.execCommand("insertText", false, before + getSelection().toString() + after);
    });
    bar.append(button);
  }
  area.style.display = "none"; // it is still sent with its form
  (area.closest("label") ?? area).after(make("div", { class: "editor-frame" }, bar, box)); // a label would take its clicks
}

/** Return the text of an editor, in which browsers make a block of each line, with a line break in empty ones. */
function textIn(box) {
  let text = "";
  for (const node of box.childNodes) {
    if (node.nodeType === Node.TEXT_NODE) text += node.data;
    else if (node.nodeName === "BR") text += node === box.lastChild ? "" : "\n";
    else text += (node.previousSibling ? "\n" : "") + textIn(node);
  }
  return text;
}
