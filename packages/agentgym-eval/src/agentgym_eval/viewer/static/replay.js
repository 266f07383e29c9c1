"use strict";
// A replay: one turn at a time with keys, buttons, the timeline and a play button. Without this all turns stand below
// each other; so they do after `t`.
(() => {
  const replay = document.getElementById("replay");
  const last = Number(replay.dataset.last);
  const turns = [...replay.querySelectorAll(".turn")];
  const marks = [...replay.querySelectorAll(".timeline a")];
  const button = (name) => replay.querySelector(`[data-go="${name}"]`);
  const speed = document.getElementById("speed");
  const keys = document.getElementById("keys");
  const BEAT_MS = 1100;
  let now = 0;
  let timer = 0;

  const oneByOne = () => replay.classList.contains("replay");

  const go = (turn, { write = true } = {}) => {
    now = Math.min(Math.max(turn, 0), last);
    turns.forEach((each, at) => each.classList.toggle("now", at === now));
    marks.forEach((each, at) => each.classList.toggle("now", at === now));
    document.getElementById("where").textContent = now === last ? `end of ${last}` : `turn ${now} of ${last}`;
    const target = turns[now].querySelector(".target");
    if (target) {
      const shown = target.closest(".shown");
      shown.scrollTop = target.offsetTop - shown.clientHeight / 2;
    }
    if (write) history.replaceState(null, "", `#turn-${now}`);
    if (!oneByOne()) turns[now].scrollIntoView({ block: "start" });
    if (now === last) pause();
  };

  const pause = () => {
    clearTimeout(timer);
    timer = 0;
    button("play").textContent = "▶ Play";
    button("play").setAttribute("aria-label", "Play");
  };
  const beat = () => {
    timer = setTimeout(() => {
      go(now + 1);
      if (timer) beat();
    }, BEAT_MS / Number(speed.value));
  };
  const play = () => {
    if (timer) return pause();
    if (now === last) go(0);
    button("play").textContent = "|| Pause";
    button("play").setAttribute("aria-label", "Pause");
    beat();
  };
  const faster = (by) => {
    speed.selectedIndex = Math.min(Math.max(speed.selectedIndex + by, 0), speed.options.length - 1);
  };
  const transcript = () => {
    pause();
    const all = replay.classList.toggle("replay") === false;
    button("all").setAttribute("aria-pressed", String(all));
    go(now);
  };

  const deeds = {
    first: () => go(0), back: () => { pause(); go(now - 1); }, play, on: () => { pause(); go(now + 1); },
    last: () => go(last), all: transcript, help: () => keys.showModal(),
  };
  const byKey = {
    ArrowLeft: "back", ArrowRight: "on", j: "on", k: "back", Home: "first", End: "last", " ": "play", t: "all", "?": "help",
  };
  const side = document.querySelector(".attempts .all");

  document.addEventListener("keydown", (event) => {
    const at = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey || keys.open || at.matches("select, input, textarea")) return;
    if (event.key === " " && at.closest("button, summary, a")) return;
    if (event.key === "s" && side) location.href = side.href;
    else if (event.key === "+" || event.key === "-") faster(event.key === "+" ? 1 : -1);
    else if (byKey[event.key]) deeds[byKey[event.key]]();
    else return;
    event.preventDefault();
  });
  replay.addEventListener("click", (event) => {
    const pressed = event.target.closest("[data-go]");
    const mark = event.target.closest("[data-turn]");
    if (pressed) deeds[pressed.dataset.go]();
    if (mark) {
      event.preventDefault();
      pause();
      go(Number(mark.dataset.turn));
    }
  });

  // An address may name a turn, or a passage that is cited: its turn is shown and it is opened.
  const follow = () => {
    const named = location.hash.length > 1 ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
    const turn = named?.closest(".turn");
    if (turn) go(turns.indexOf(turn), { write: false });
    for (const each of replay.querySelectorAll(".found")) each.classList.remove("found");
    const passage = named?.closest(".passage");
    if (passage) {
      passage.open = true;
      named.classList.add("found");
      named.scrollIntoView({ block: "center" });
    }
  };
  addEventListener("hashchange", follow);

  // Worlds that take their time draw their scenes after the page is there.
  const later = document.getElementById("scenes-later");
  const draw = async () => {
    const link = later.querySelector("a");
    link.textContent = "Drawing what the world looked like …";
    const answer = await fetch(link.href);
    if (!answer.ok) {
      link.textContent = "The scenes could not be drawn; try again";
      return;
    }
    const drawn = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const each of drawn.querySelectorAll(".stage")) document.getElementById(each.id)?.replaceWith(each);
    const note = drawn.getElementById("scenes-note");
    if (note) later.replaceWith(note);
    else later.remove();
  };

  replay.querySelector(".buttons").hidden = false;
  replay.classList.add("replay");
  go(0, { write: false });
  follow();
  if (later) draw();
})();
