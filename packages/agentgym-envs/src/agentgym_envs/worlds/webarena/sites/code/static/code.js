"use strict";
// The pickers of an issue's page, the file finder and the copy buttons.

for (const button of document.querySelectorAll("[data-opens]")) {
  const panel = document.getElementById(button.dataset.opens);
  button.hidden = false;
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", () => {
    panel.hidden = !panel.hidden;
    button.setAttribute("aria-expanded", String(!panel.hidden));
    if (!panel.hidden) panel.querySelector("[data-filters]").focus();
  });
}

for (const input of document.querySelectorAll("[data-filters]")) {
  const filter = () => {
    const wanted = input.value.trim().toLowerCase();
    for (const label of input.closest("form").querySelectorAll("fieldset label")) {
      label.hidden = !label.textContent.toLowerCase().includes(wanted);
    }
  };
  input.addEventListener("input", filter);
  // Enter in the filter must not send the form half done.
  input.addEventListener("keydown", (event) => event.key === "Enter" && event.preventDefault());
}

for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", () => {
    const field = button.parentElement.querySelector("input");
    field.select();
    document.execCommand("copy");
    button.textContent = "Copied";
  });
}

for (const input of document.querySelectorAll("[data-finder]")) {
  const list = document.getElementById("found");
  fetch(input.dataset.finder).then((answer) => answer.json()).then((paths) => {
    const show = () => {
      const wanted = input.value.trim().toLowerCase();
      list.replaceChildren();
      for (const path of paths.filter((path) => path.toLowerCase().includes(wanted)).slice(0, 20)) {
        const link = document.createElement("a");
        link.href = input.dataset.blob + path;
        link.textContent = path;
        const item = document.createElement("li");
        item.append(link);
        list.append(item);
      }
    };
    input.addEventListener("input", show);
    show();
  });
}
