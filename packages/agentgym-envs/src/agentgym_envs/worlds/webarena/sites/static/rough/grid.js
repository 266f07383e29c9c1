// Long tables: a few rows at a time, which are fetched when they are asked for.
import { adopt, again, make, reloadable } from "./parts.js";

const ROWS = 10;

const tablesOf = (page) => [...page.querySelectorAll("main table:not(.sortable)")];
const rowsOf = (table) => [...(table.tBodies[0]?.rows ?? [])];

export function grids(root) {
  if (root !== document || !reloadable()) return;
  tablesOf(document).forEach((table, index) => {
    const total = rowsOf(table).length;
    const changes = table.querySelector("input, select, textarea, form, .stock"); // has to be sent or kept as a whole
    if (total > ROWS && !changes) dress(table, index, total);
  });
}

function dress(table, index, total) {
  const said = make("span", { role: "status" });
  const button = (name, sign, step) => {
    const made = make("button", { type: "button", class: "plain", title: name }, make("span", { "aria-hidden": "true" }, sign));
    made.addEventListener("click", () => show(from + step));
    return made;
  };
  const previous = button("Previous rows", "‹", -ROWS);
  const next = button("Next rows", "›", ROWS);
  let from = 0;
  const describe = () => {
    said.textContent = `Rows ${from + 1} to ${Math.min(total, from + ROWS)} of ${total}`;
    previous.disabled = from === 0;
    next.disabled = from + ROWS >= total;
  };
  async function show(start) {
    from = start;
    previous.disabled = next.disabled = true;
    said.textContent = "Loading…";
    table.setAttribute("aria-busy", "true");
    const page = await again();
    const rows = rowsOf(tablesOf(page)[index]).slice(from, from + ROWS);
    table.tBodies[0].replaceChildren();
    adopt(table.tBodies[0], rows);
    table.removeAttribute("aria-busy");
    describe();
  }
  for (const row of rowsOf(table).slice(ROWS)) row.remove();
  table.after(make("div", { class: "row grid-bar" }, previous, said, next));
  describe();
}
