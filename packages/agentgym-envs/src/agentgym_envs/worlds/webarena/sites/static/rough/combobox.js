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
    if (list?.shown) return list.close();
    list = open(select, button, name);
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
  // Not an auto popup: the press of the button that opens it would close it again.
  const list = popup(button, { class: "popup choices" }, "manual");
  const options = make("ul", { role: "listbox", "aria-label": `${name} options` });
  const status = make("p", { role: "status", class: "soft" });
  const done = (option) => {
    close();
    choose(select, option);
    button.focus();
  };
  const outside = (event) => { if (!list.box.contains(event.target) && event.target !== button) close(); };
  const keys = (event) => {
    if (event.key !== "Escape") return;
    event.preventDefault();
    close();
    button.focus();
  };
  const close = () => {
    document.removeEventListener("pointerdown", outside, true);
    document.removeEventListener("keydown", keys, true);
    list.close();
  };
  const fill = (typed) => {
    const wanted = plain(typed).toLowerCase();
    const found = [...select.options].filter((option) => plain(option.label).toLowerCase().includes(wanted));
    found.sort((one, other) => (plain(other.label).toLowerCase() === wanted) - (plain(one.label).toLowerCase() === wanted));
    options.replaceChildren(...found.slice(0, SHOWN).map((option) => {
      const item = make("li", { role: "option", "aria-selected": String(option.selected) }, plain(option.label));
      if (option.disabled) item.setAttribute("aria-disabled", "true");
      else item.addEventListener("click", () => done(option));
      return item;
    }));
    status.textContent = found.length > SHOWN ? `${SHOWN} of ${found.length}; type to narrow down.` : "";
    return found;
  };
  const long = select.options.length > SHOWN;
  if (long) {
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
    list.box.append(filter);
  }
  fill("");
  list.box.append(options, status);
  list.open();
  if (long) list.box.querySelector("input").focus();
  document.addEventListener("pointerdown", outside, true);
  document.addEventListener("keydown", keys, true);
  return { close, get shown() { return list.shown; } };
}
