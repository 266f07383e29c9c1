"use strict";
// The selection in the list of runs: the number of selected runs, and a box that selects all of the page.
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
  document.addEventListener("submit", (event) => {
    // Addresses of curves and comparisons need no tag. The field stays disabled only while the form is sent.
    const tag = event.target.id === "chosen" && event.submitter?.formMethod !== "post" ? event.target.elements.tag : null;
    if (!tag) return;
    tag.disabled = true;
    setTimeout(() => { tag.disabled = false; });
  });
  document.addEventListener("htmx:after:swap", show);
  addEventListener("pageshow", show); // boxes that the browser restored on the way back
  show();
})();
