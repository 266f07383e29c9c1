// Fields for days: a calendar opens below them. A day can still be typed.
import { changed, make, nameOf, popup } from "./parts.js";

const DAYS = ["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"];
const TURNS = [["Previous year", "«", -12], ["Previous month", "‹", -1], ["Next month", "›", 1], ["Next year", "»", 12]];

const iso = (date) => date.toISOString().slice(0, 10);
const day = (year, month, number) => new Date(Date.UTC(year, month, number));
const written = (date, parts) => date.toLocaleDateString("en-US", { timeZone: "UTC", ...parts });

export function calendars(root) {
  for (const field of root.querySelectorAll("input")) {
    if (/YYYY-MM-DD/.test(`${nameOf(field)} ${field.placeholder}`)) dress(field);
  }
}

function dress(field) {
  let calendar = null;
  field.autocomplete = "off";
  field.setAttribute("aria-haspopup", "grid");
  field.addEventListener("click", () => {
    if (!calendar?.shown) calendar = open(field);
  });
  field.addEventListener("input", () => {
    if (calendar?.shown) draw(calendar, field, monthOf(field));
  });
  field.addEventListener("keydown", ({ key }) => {
    if (calendar?.shown && (key === "Enter" || key === "Tab")) calendar.close();
  });
}

function open(field) {
  const calendar = popup(field, { class: "calendar", role: "group", "aria-label": `Calendar of ${nameOf(field)}` });
  draw(calendar, field, monthOf(field));
  calendar.open();
  return calendar;
}

/** Return the day of a field, or today. */
function monthOf(field) {
  const given = /^\d{4}-\d\d-\d\d$/.test(field.value) && !Number.isNaN(Date.parse(field.value));
  return new Date(given ? field.value : document.body.dataset.today);
}

function draw(calendar, field, date) {
  const [year, month] = [date.getUTCFullYear(), date.getUTCMonth()];
  const title = written(date, { month: "long", year: "numeric" });
  const turns = TURNS.map(([name, sign, months]) => {
    const button = make("button", { type: "button", class: "plain", title: name }, make("span", { "aria-hidden": "true" }, sign));
    button.addEventListener("click", () => draw(calendar, field, day(year, month + months, 1)));
    return button;
  });
  turns.splice(2, 0, make("strong", { "aria-live": "polite" }, title));
  const grid = make("div", { role: "grid", class: "days", "aria-label": title });
  for (const name of DAYS) grid.append(make("span", { class: "soft", "aria-hidden": "true" }, name));
  for (let blank = (day(year, month, 1).getUTCDay() + 6) % 7; blank > 0; blank--) grid.append(make("span"));
  for (let number = 1; day(year, month, number).getUTCMonth() === month; number++) {
    grid.append(dayButton(calendar, field, day(year, month, number)));
  }
  calendar.box.replaceChildren(make("div", { class: "row" }, ...turns), grid);
}

function dayButton(calendar, field, date) {
  const name = written(date, { month: "long", day: "numeric", year: "numeric" });
  const button = make("button", { type: "button", class: "plain", "aria-label": name }, String(date.getUTCDate()));
  if (iso(date) === field.value) button.setAttribute("aria-pressed", "true");
  button.addEventListener("click", () => {
    field.value = iso(date);
    changed(field, "input", "change");
    calendar.close();
    field.focus();
  });
  return button;
}
