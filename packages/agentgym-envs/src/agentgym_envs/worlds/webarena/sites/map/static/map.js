// Dragging, the wheel, and layers without a new page. Everything here can be done by links and forms as well.
"use strict";
const svg = document.getElementById("map");
if (svg) {
  document.body.classList.add("scripted");
  const view = svg.viewBox.baseVal;
  let held = null;
  let moved = false;
  const perPixel = () => Math.min(view.width / svg.clientWidth, view.height / svg.clientHeight);
  svg.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, y: event.clientY };
    moved = false;
  });
  window.addEventListener("pointermove", (event) => {
    if (!held) return;
    const scale = perPixel();
    const [dx, dy] = [event.clientX - held.x, event.clientY - held.y];
    if (Math.abs(dx) + Math.abs(dy) > 4) moved = true;
    view.x -= dx * scale;
    view.y -= dy * scale;
    held = { x: event.clientX, y: event.clientY };
  });
  window.addEventListener("pointerup", () => (held = null));
  svg.addEventListener("click", (event) => {
    const target = event.target.closest("[data-href]");
    if (target && !moved) window.location.href = target.dataset.href;
  });
  svg.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const factor = event.deltaY > 0 ? 1.25 : 0.8;
      const width = Math.min(Math.max(view.width * factor, 0.8), 242);
      const height = (width * view.height) / view.width;
      view.x += (view.width - width) / 2;
      view.y += (view.height - height) / 2;
      view.width = width;
      view.height = height;
    },
    { passive: false },
  );
  for (const box of document.querySelectorAll(".layers input[type=checkbox]")) {
    box.addEventListener("change", () => {
      const layer = svg.querySelector(`[data-layer="${box.value}"]`);
      if (layer) layer.style.display = box.checked ? "none" : "";
    });
  }
}
