"use strict";
// A game's page: keeps the latest message in view, and filters the listed actions by the typed text.
(() => {
  const narrow = (typed) => {
    for (const button of document.querySelectorAll(".actions button")) {
      button.hidden = !button.value.toLowerCase().includes(typed.trim().toLowerCase());
    }
  };
  document.addEventListener("input", (event) => {
    if (event.target.matches('.say input[name="text"]')) narrow(event.target.value);
  });
  const typed = document.querySelector('.say input[name="text"]')?.value;
  if (typed) narrow(typed); // typed before this script was loaded
  const show = () => {
    const log = document.getElementById("log");
    if (log) log.scrollTop = log.scrollHeight;
  };
  document.addEventListener("htmx:after:swap", show);
  show();
})();
