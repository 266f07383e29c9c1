// What the widgets share.

export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

export const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/** Return the name of a field: its own label, without what its fields contain. */
export function nameOf(field) {
  if (field.hasAttribute("aria-label")) return field.getAttribute("aria-label");
  const label = field.labels?.[0]?.cloneNode(true);
  if (!label) return field.getAttribute("placeholder") ?? "";
  for (const inner of label.querySelectorAll("select, textarea, input, button, svg")) inner.remove();
  return label.textContent.replace(/\s+/g, " ").trim();
}

/** Return what a button is called, also if it shows a picture. */
export function textOf(button) {
  return (button.getAttribute("aria-label") || button.textContent.trim() || button.title).replace(/\s+/g, " ").trim();
}

export function changed(field, ...events) {
  for (const name of events) field.dispatchEvent(new Event(name, { bubbles: true }));
}

/**
 * Make a popup below an element, which closes with Escape and with a press of the mouse elsewhere.
 *
 * It opens in the dialog around the element, since dialogs cover everything else.
 */
export function popup(anchor, attributes) {
  const box = make("div", { ...attributes, popover: "manual", class: `popup ${attributes.class}` });
  const outside = ({ target }) => { if (!box.contains(target) && !anchor.contains(target)) close(); };
  const escape = (event) => {
    if (event.key !== "Escape") return;
    event.preventDefault(); // a dialog around it stays open, and a search field keeps its text
    close();
    anchor.focus();
  };
  function open() {
    (anchor.closest("dialog") ?? document.body).append(box);
    box.showPopover();
    place(anchor, box);
    anchor.setAttribute("aria-expanded", "true");
    document.addEventListener("pointerdown", outside, true);
    document.addEventListener("keydown", escape, true);
  }
  function close() {
    box.remove();
    anchor.setAttribute("aria-expanded", "false");
    document.removeEventListener("pointerdown", outside, true);
    document.removeEventListener("keydown", escape, true);
  }
  return { box, open, close, get shown() { return box.isConnected; } };
}

export function place(anchor, box) {
  const { left, top, bottom } = anchor.getBoundingClientRect();
  const { width, height } = box.getBoundingClientRect();
  const below = bottom + height <= innerHeight || top < height;
  box.style.left = `${Math.max(0, Math.min(left, innerWidth - width))}px`;
  box.style.top = `${Math.max(0, Math.min(below ? bottom : top - height, innerHeight - height))}px`;
}

/** Fetch this page again, as it is when the next part of it is needed. */
export async function again() {
  const [answer] = await Promise.all([fetch(location.href), wait(150)]);
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

/** Add nodes of another document, and let all scripts enhance them. */
export function adopt(parent, nodes, before = null) {
  const added = [...nodes].map((node) => document.importNode(node, true));
  for (const node of added) parent.insertBefore(node, before);
  for (const node of added) node.dispatchEvent(new CustomEvent("content", { bubbles: true }));
}

/** Whether the page's address shows the same page again. */
export const reloadable = () => document.body.dataset.method === "GET";
