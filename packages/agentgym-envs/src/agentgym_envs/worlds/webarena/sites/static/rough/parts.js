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

/** Make a popup below an element. It opens in the dialog around the element, since dialogs cover everything else. */
export function popup(anchor, attributes, kind = "auto") {
  const box = make("div", { popover: kind, class: "popup", ...attributes });
  box.addEventListener("toggle", ({ newState }) => {
    anchor.setAttribute("aria-expanded", String(newState === "open"));
    if (newState === "closed") box.remove();
  });
  return {
    box,
    open() {
      if (!box.isConnected) (anchor.closest("dialog") ?? document.body).append(box);
      if (!box.matches(":popover-open")) box.showPopover();
      place(anchor, box);
    },
    close() {
      if (box.matches(":popover-open")) box.hidePopover();
    },
    get shown() {
      return box.matches(":popover-open");
    },
  };
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
