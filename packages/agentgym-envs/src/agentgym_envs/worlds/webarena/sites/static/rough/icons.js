// Buttons: pictures in place of words. What a button does is in its label, its title, or only in a tip on hovering.
import { make, textOf, wait } from "./parts.js";

const TIP_DELAY = 300;
const SHAPES = {
  search: "M10 4a6 6 0 1 0 0 12 6 6 0 0 0 0-12zm4.5 10.5L20 20",
  remove: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  add: "M12 5v14M5 12h14",
  save: "M5 12l5 5L20 7",
  star: "M12 4l2.5 5.2 5.5.8-4 4 1 5.6-5-2.7-5 2.7 1-5.6-4-4 5.5-.8z",
  filter: "M4 5h16l-6 8v6l-4-2v-4z",
  sort: "M8 5v14M4 15l4 4 4-4M16 19V5M12 9l4-4 4 4",
  send: "M4 12l16-8-6 16-3-7z",
  bell: "M6 17h12l-1.5-2.5V10a4.5 4.5 0 0 0-9 0v4.5zM10.5 20h3",
  out: "M10 5H5v14h5M14 8l4 4-4 4M18 12H9",
};
const WORDS = [
  [/^search$/i, "search"], [/^(remove|delete|unsubscribe|block)\b/i, "remove"], [/^(add|new|create|invite)\b/i, "add"],
  [/^(save|apply|approve|update)\b/i, "save"], [/^(un)?star$/i, "star"], [/filter/i, "filter"], [/^sort$/i, "sort"],
  [/^(send|post|publish|submit)\b/i, "send"], [/^sign out$/i, "out"],
];

export function shape(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "icon");
  path.setAttribute("d", SHAPES[name]);
  svg.append(path);
  return svg;
}

export function icons(root) {
  for (const button of root.querySelectorAll("main button, header button, .consent button")) {
    const text = textOf(button);
    const found = WORDS.find(([words]) => words.test(text));
    if (!found || button.matches(".vote, .collapse, .quick, .opener, .combobox, .menu-button, [data-copy], [data-opens], [data-consent]")) continue;
    button.replaceChildren(shape(found[1]));
    button.classList.add("iconic");
    if (found[1] === "search") tip(button, text); // has no name at all
    else if (found[1] === "save" || found[1] === "filter") button.setAttribute("aria-label", text);
    else button.title = text;
  }
}

function tip(button, text) {
  let box = null;
  let inside = false;
  const show = async (now) => {
    inside = now;
    if (now) await wait(TIP_DELAY);
    box?.remove();
    box = null;
    if (!inside) return;
    box = make("span", { role: "tooltip", class: "tip" }, text);
    const { left, bottom } = button.getBoundingClientRect();
    box.style.left = `${left}px`;
    box.style.top = `${bottom + 4}px`;
    document.body.append(box);
  };
  button.addEventListener("mouseenter", () => show(true));
  button.addEventListener("mouseleave", () => show(false));
}
