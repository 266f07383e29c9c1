// Fields for days: a calendar opens below them. A day can still be typed.
import { changed, make, nameOf, popup } from "./parts.js";

const DAYS = ["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"];
const iso = (date) => date.toISOString().slice(0, 10);
const day = (year, month, number) => new Date(Date.UTC(year, month, number));
const long = (date) => date.toLocaleDateString("en-US", { month: "long", day: "numeric", year: "numeric", timeZone: "UTC" });

export function calendars(root) {
  for (const field of root.querySelectorAll("input")) {
    if (/YYYY-MM-DD/.test(`${nameOf(field)} ${field.placeholder}`)) dress(field);
  }
}

function dress(field) {
  let calendar = null;
  field.autocomplete = "off";
  field.setAttribute("aria-haspopup", "grid");
  field.addEventListener("click", () => { if (!calendar?.shown) calendar = open(field); });
}

function open(field) {
  const list = popup(field, { class: "popup calendar", role: "group", "aria-label": `Calendar of ${nameOf(field)}` }, "manual");
  let month;
  const outside = (event) => { if (!list.box.contains(event.target) && event.target !== field) close(); };
  const keys = (event) => {
    if (event.key === "Escape") event.preventDefault();
    if (["Escape", "Enter", "Tab"].includes(event.key) && event.target === field) close();
    else if (event.key === "Escape") close();
  };
  const close = () => {
    document.removeEventListener("pointerdown", outside, true);
    document.removeEventListener("keydown", keys, true);
    field.removeEventListener("input", show);
    list.close();
  };
  const pick = (date) => {
    field.value = iso(date);
    changed(field, "input", "change");
    close();
    field.focus();
  };
  const turn = (months) => {
    month = day(month.getUTCFullYear(), month.getUTCMonth() + months, 1);
    draw();
  };
  const arrow = (name, sign, months) => {
    const button = make("button", { type: "button", class: "plain", title: name }, make("span", { "aria-hidden": "true" }, sign));
    button.addEventListener("click", () => turn(months));
    return button;
  };
  function draw() {
    const title = month.toLocaleDateString("en-US", { month: "long", year: "numeric", timeZone: "UTC" });
    const first = day(month.getUTCFullYear(), month.getUTCMonth(), 1);
    const grid = make("div", { role: "grid", class: "days", "aria-label": title });
    for (const name of DAYS) grid.append(make("span", { class: "soft", "aria-hidden": "true" }, name));
    for (let blank = (first.getUTCDay() + 6) % 7; blank > 0; blank--) grid.append(make("span"));
    for (let date = first; date.getUTCMonth() === month.getUTCMonth(); date = new Date(+date + 864e5)) {
      const button = make("button", { type: "button", class: "plain", "aria-label": long(date) }, String(date.getUTCDate()));
      if (iso(date) === field.value) button.setAttribute("aria-pressed", "true");
      const chosen = date;
      button.addEventListener("click", () => pick(chosen));
      grid.append(button);
    }
    list.box.replaceChildren(
      make("div", { class: "row" }, arrow("Previous year", "«", -12), arrow("Previous month", "‹", -1),
        make("strong", { "aria-live": "polite" }, title), arrow("Next month", "›", 1), arrow("Next year", "»", 12)),
      grid,
    );
  }
  function show() {
    const given = /^\d{4}-\d\d-\d\d$/.test(field.value) && !Number.isNaN(Date.parse(field.value));
    month = new Date(given ? field.value : document.body.dataset.today);
    draw();
  }
  show();
  list.open();
  field.addEventListener("input", show);
  document.addEventListener("pointerdown", outside, true);
  document.addEventListener("keydown", keys, true);
  return { get shown() { return list.shown; } };
}
