"use strict";
// The search in the picker of columns.
(() => {
  for (const picker of document.querySelectorAll("details.columns")) {
    const find = picker.querySelector(".find");
    find.hidden = false;
    find.addEventListener("input", (event) => {
      event.stopPropagation(); // it is no filter of runs
      const words = event.target.value.toLowerCase().split(/\s+/);
      for (const each of picker.querySelectorAll("[data-name]")) each.hidden = !words.every((word) => each.dataset.name.includes(word));
      for (const group of picker.querySelectorAll("fieldset")) group.hidden = !group.querySelector("[data-name]:not([hidden])");
    });
    find.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
  }
})();
