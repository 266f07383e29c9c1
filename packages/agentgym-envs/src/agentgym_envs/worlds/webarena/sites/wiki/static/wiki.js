// A click on the head of a table sorts it by that column; a second click turns the order round.
"use strict";
const worth = (cell) => {
  const text = cell.textContent.trim();
  const number = parseFloat(text.replace(/,/g, ""));
  return Number.isNaN(number) ? text : number;
};
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((first, second) => {
        const [a, b] = [worth(first.cells[column]), worth(second.cells[column])];
        const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en");
        return down ? -order : order;
      });
      table.tBodies[0].append(...rows);
    });
  });
}
