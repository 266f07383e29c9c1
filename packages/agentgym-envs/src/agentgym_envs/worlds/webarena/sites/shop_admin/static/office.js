// What lists can do with JavaScript: tick all boxes at once, and change a product's stock in place.
"use strict";

for (const all of document.querySelectorAll("input.all")) {
  all.addEventListener("change", () => {
    for (const box of all.form.querySelectorAll("input[name=selected]")) box.checked = all.checked;
  });
}

function say(text) {
  document.getElementById("said").textContent = text;
}

function show(cell, stock) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "plain";
  button.textContent = stock;
  button.setAttribute("aria-label", `Edit stock of ${cell.dataset.of}: ${stock}`);
  button.addEventListener("click", () => edit(cell, stock));
  cell.replaceChildren(button);
}

function edit(cell, stock) {
  const input = document.createElement("input");
  input.className = "edit";
  input.value = stock;
  input.setAttribute("aria-label", `Stock of ${cell.dataset.of}`);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      save(cell, input.value, stock);
    } else if (event.key === "Escape") {
      show(cell, stock);
    }
  });
  cell.replaceChildren(input);
  input.focus();
  input.select();
  say("Press Enter to save the stock.");
}

async function save(cell, typed, before) {
  const body = new URLSearchParams({ stock: typed.trim() });
  const answer = await (await fetch(`/products/${cell.dataset.id}/stock`, { method: "POST", body })).json();
  say(answer.error ?? answer.notice);
  show(cell, answer.stock ?? before);
}

for (const cell of document.querySelectorAll(".stock")) show(cell, cell.textContent);
