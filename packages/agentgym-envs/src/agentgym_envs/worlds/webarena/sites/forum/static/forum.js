"use strict";
// Votes without reloading, comments that collapse, and a preview of what one writes.

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches(".votes") || !event.submitter) return;
  event.preventDefault();
  const body = new URLSearchParams({ value: event.submitter.value });
  const answer = await fetch(form.action, { method: "POST", body, headers: { Accept: "application/json" } });
  if (answer.redirected) { location.href = answer.url; return; }
  if (!answer.ok) return;
  const { score, vote } = await answer.json();
  form.querySelector(".score").textContent = score;
  form.closest("article").querySelector(".points").textContent = `${score} ${score === 1 ? "point" : "points"}`;
  for (const button of form.querySelectorAll(".vote")) {
    button.setAttribute("aria-pressed", String(Number(button.value) === vote));
  }
});

function below(comment) {
  const found = [];
  const depth = Number(comment.dataset.depth);
  for (let next = comment.nextElementSibling; next?.matches(".comment"); next = next.nextElementSibling) {
    if (Number(next.dataset.depth) <= depth) break;
    found.push(next);
  }
  return found;
}

function enableCollapsing(root) {
  for (const button of root.querySelectorAll(".collapse")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const comment = button.closest(".comment");
      const open = button.getAttribute("aria-expanded") === "true";
      button.setAttribute("aria-expanded", String(!open));
      button.setAttribute("aria-label", button.getAttribute("aria-label").replace(/^\w+/, open ? "Expand" : "Collapse"));
      button.textContent = open ? "+" : "–";
      comment.querySelector(".body").hidden = open;
      for (const reply of below(comment)) reply.hidden = open;
    });
  }
}

enableCollapsing(document);
document.addEventListener("content", (event) => enableCollapsing(event.target));

for (const area of document.querySelectorAll("textarea[data-preview]")) {
  const shown = document.createElement("div");
  shown.className = "preview prose";
  shown.setAttribute("role", "region");
  shown.setAttribute("aria-label", "Preview");
  shown.hidden = true;
  area.closest("label").after(shown);
  let latest = 0;
  area.addEventListener("input", async () => {
    const turn = ++latest;
    const body = new URLSearchParams({ body: area.value });
    const answer = await fetch("/preview", { method: "POST", body });
    if (turn !== latest || !answer.ok) return;
    shown.innerHTML = (await answer.json()).html;
    shown.hidden = area.value.trim() === "";
  });
}
