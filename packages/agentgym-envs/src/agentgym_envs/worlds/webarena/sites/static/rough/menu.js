// Navigation: menus that open a moment after the mouse comes, and close a moment after it has left.
import { make, wait } from "./parts.js";

const OPENS = 150;
const CLOSES = 200;

export function menus(root) {
  for (const nav of root.querySelectorAll("header nav, nav.departments")) {
    if (nav.querySelectorAll("a").length > 1) dress(nav);
  }
}

function dress(nav) {
  const name = nav.getAttribute("aria-label") ?? "Menu";
  const button = make("button", { type: "button", class: "menu-button", "aria-haspopup": "menu", "aria-expanded": "false" }, name);
  const panel = make("div", { class: "flyout", role: "group", "aria-label": `${name} menu`, hidden: true });
  panel.append(...nav.childNodes);
  nav.append(button, panel);
  nav.classList.add("menu-bar");
  let inside = false;
  const show = (open) => {
    panel.hidden = !open;
    panel.classList.toggle("to-left", button.getBoundingClientRect().left > innerWidth / 2);
    button.setAttribute("aria-expanded", String(open));
  };
  const shown = () => !panel.hidden;
  // Movements, since a page that loads under a resting mouse must not open a menu.
  document.addEventListener("mousemove", async ({ target }) => {
    const now = nav.contains(target);
    if (now === inside) return;
    inside = now;
    await wait(now ? OPENS : CLOSES);
    if (inside === now && shown() !== now) show(now);
  });
  button.addEventListener("click", () => show(true));
  document.addEventListener("pointerdown", ({ target }) => { if (!nav.contains(target)) show(false); }, true);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !shown()) return;
    event.preventDefault();
    show(false);
  });
}
