"use strict";
// What every page can do: light or dark by a button, remembered. Without JavaScript the system's choice stands.
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const remembered = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem("theme", theme); } catch { /* a private window */ } };
  if (remembered()) root.dataset.theme = remembered();
  button.hidden = false;
  button.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    remember(root.dataset.theme);
  });
})();
