"use strict";
// Copies the messages of a turn. The browser offers the clipboard on https and on this machine's own addresses only;
// elsewhere the link to the JSON remains.
(() => {
  const button = document.getElementById("copy");
  if (!button || !navigator.clipboard) return;
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      const response = await fetch(button.dataset.from);
      if (!response.ok) throw new Error(response.statusText);
      await navigator.clipboard.writeText(await response.text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied; open the JSON";
    }
  });
})();
