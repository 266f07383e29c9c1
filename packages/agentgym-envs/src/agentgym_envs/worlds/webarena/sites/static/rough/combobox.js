// Lists to choose from: a button that opens a popup with options; long ones load what is typed after a moment.
import { changed, make, nameOf, popup, wait } from "./parts.js";

const SHOWN = 8;
const DEBOUNCE = 250;
const plain = (text) => text.replace(/\s+/g, " ").trim();

export function comboboxes(root) {
  for (const select of root.querySelectorAll("select:not([multiple])")) dress(select);
}

function dress(select) {
  const name = nameOf(select);
  const button = make("button", {
    type: "button", role: "combobox", class: "combobox", "aria-label": name,
    "aria-haspopup": "listbox", "aria-expanded": "false", disabled: select.disabled,
  });
  const show = () => { button.textContent = plain(select.selectedOptions[0]?.label ?? ""); };
  select.addEventListener("change", show);
  show();
  let list = null;
  button.addEventListener("click", () => {
    if (list?.shown) list.close();
    else list = open(select, button, name);
  });
  button.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose(select, select.options[select.selectedIndex + step]);
  });
  select.style.display = "none"; // it is still sent with its form
  select.before(button);
}

function choose(select, option) {
  if (!option || option.disabled || option.selected) return;
  option.selected = true;
  changed(select, "input", "change");
}

function open(select, button, name) {
  const list = popup(button, { class: "choices" });
  const options = make("ul", { role: "listbox", "aria-label": `${name} options` });
  const status = make("p", { role: "status", class: "soft" });
  const done = (option) => {
    list.close();
    choose(select, option);
    button.focus();
  };
  const fill = (typed) => {
    const found = matching(select, typed);
    options.replaceChildren(...found.slice(0, SHOWN).map((option) => entry(option, done)));
    status.textContent = found.length > SHOWN ? `${SHOWN} of ${found.length}; type to narrow down.` : "";
    return found;
  };
  fill("");
  list.box.append(options, status);
  const filter = select.options.length > SHOWN ? filterOf(name, status, fill, done) : null;
  if (filter) list.box.prepend(filter);
  list.open();
  filter?.focus();
  return list;
}

/** Return the options that contain what is typed, an equal one first. */
function matching(select, typed) {
  const wanted = plain(typed).toLowerCase();
  const text = (option) => plain(option.label).toLowerCase();
  const found = [...select.options].filter((option) => text(option).includes(wanted));
  return found.sort((one, other) => (text(other) === wanted) - (text(one) === wanted));
}

function entry(option, done) {
  const item = make("li", { role: "option", "aria-selected": String(option.selected) }, plain(option.label));
  if (option.disabled) item.setAttribute("aria-disabled", "true");
  else item.addEventListener("click", () => done(option));
  return item;
}

function filterOf(name, status, fill, done) {
  const filter = make("input", { type: "search", "aria-label": `Filter ${name}`, autocomplete: "off" });
  let latest = 0;
  filter.addEventListener("input", async () => {
    const turn = ++latest;
    status.textContent = "Loading…";
    await wait(DEBOUNCE);
    if (turn === latest) fill(filter.value);
  });
  filter.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    const [first] = fill(filter.value);
    if (first) done(first);
  });
  return filter;
}
