"use strict";
// The selection in the list of runs: the number of selected runs, and a box that selects all runs of the page. Without
// this script, runs are selected one by one.
(() => {
  const boxes = () => [...document.querySelectorAll("input[form='chosen'][name='run']")];
  const show = () => {
    const all = document.getElementById("select-all");
    if (!all) return;
    const rows = boxes();
    const chosen = rows.filter((box) => box.checked).length;
    const label = all.closest("label");
    label.hidden = false;
    label.querySelector("output").textContent = chosen ? `${chosen} selected` : "Select all";
    all.checked = chosen > 0 && chosen === rows.length;
    all.indeterminate = chosen > 0 && chosen < rows.length;
  };
  document.addEventListener("change", (event) => {
    if (event.target.id === "select-all") for (const box of boxes()) box.checked = event.target.checked;
    if (event.target.form?.id === "chosen") show();
  });
  document.addEventListener("htmx:after:swap", show);
  addEventListener("pageshow", show); // boxes that the browser restored on the way back
  show();
})();
