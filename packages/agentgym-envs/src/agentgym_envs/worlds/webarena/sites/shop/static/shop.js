// Suggestions while typing, the price of the chosen options, the quick view. Everything else works without this.
"use strict";

const money = (cents) => "$" + (cents / 100).toLocaleString("en-US", { minimumFractionDigits: 2 });

const search = document.querySelector(".search input");
const suggestions = document.getElementById("suggestions");
let asked = 0;

async function suggest() {
  const number = ++asked;
  const words = search.value.trim();
  const found = words.length < 2 ? [] : await (await fetch("/suggest?q=" + encodeURIComponent(words))).json();
  if (number !== asked) return; // somebody has typed on
  suggestions.replaceChildren(...found.map(({ name, href }) => Object.assign(document.createElement("a"), { textContent: name, href })));
  suggestions.hidden = found.length === 0;
}

// The rough skin has suggestions of its own.
if (search && !document.body.matches(".rough")) search.addEventListener("input", suggest);
document.addEventListener("click", (event) => {
  if (suggestions && !event.target.closest(".search")) suggestions.hidden = true;
});

const price = document.getElementById("price");
const options = [...document.querySelectorAll("select.option")];

function reprice() {
  const extras = options.map((select) => Number(select.selectedOptions[0].dataset.extra || 0));
  const extra = extras.reduce((a, b) => a + b, 0);
  price.querySelector(".price").textContent = money(Number(price.dataset.cost) + extra);
  const full = price.querySelector("s");
  if (full) full.textContent = money(Number(price.dataset.full) + extra);
}

for (const select of options) select.addEventListener("change", reprice);

const dialog = document.getElementById("quick");

function enableQuickViews(root) {
  for (const button of dialog ? root.querySelectorAll(".quick") : []) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      dialog.innerHTML = await (await fetch(`/product/${button.dataset.product}/quick`)).text();
      dialog.showModal();
    });
  }
}

enableQuickViews(document);
document.addEventListener("content", (event) => enableQuickViews(event.target));
