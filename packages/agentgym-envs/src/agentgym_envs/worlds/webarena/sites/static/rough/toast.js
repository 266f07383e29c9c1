// Notices: a toast in a corner, until the next key or click, and a log of all of this session.
import { shape } from "./icons.js";
import { make, popup } from "./parts.js";

const KEPT = "notices";

const logged = () => JSON.parse(sessionStorage.getItem(KEPT) ?? "[]");

export function notices(root) {
  const notice = root.querySelector("body > .notice");
  if (notice) {
    sessionStorage.setItem(KEPT, JSON.stringify([...logged(), notice.textContent.trim()]));
    toast(notice);
  }
  if (root === document) bell();
}

function toast(notice) {
  const close = make("button", { type: "button", class: "plain", title: "Dismiss" }, make("span", { "aria-hidden": "true" }, "✕"));
  notice.classList.add("toast");
  notice.append(" ", close);
  document.body.append(notice);
  const dismiss = () => {
    notice.remove();
    removeEventListener("pointerdown", dismiss, true);
    removeEventListener("keydown", dismiss, true);
  };
  // Not after some seconds: what an agent sees must not depend on how fast it is.
  addEventListener("pointerdown", dismiss, true);
  addEventListener("keydown", dismiss, true);
}

function bell() {
  const header = document.querySelector("body > header");
  if (!header) return;
  const texts = logged();
  const button = make("button", { type: "button", class: "bell", "aria-expanded": "false", title: `Notices: ${texts.length}` },
    shape("bell"));
  header.append(button);
  let list = null;
  button.addEventListener("click", () => {
    if (list?.shown) return list.close();
    list = popup(button, { class: "log", role: "region", "aria-label": "Notices" });
    const items = texts.map((text) => make("li", {}, text));
    list.box.append(items.length ? make("ol", {}, ...items) : make("p", {}, "No notices yet."));
    list.open();
  });
}
