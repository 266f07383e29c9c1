"use strict";
// A replay: shows one turn at a time, controlled by keys, buttons and the timeline. Without JavaScript, and in transcript
// mode (`t`), all turns are shown on one page.
(() => {
  const replay = document.getElementById("replay");
  const last = Number(replay.dataset.last);
  const turns = [...replay.querySelectorAll(".turn")];
  const marks = [...replay.querySelectorAll(".timeline a")];
  const button = (name) => replay.querySelector(`[data-go="${name}"]`);
  const speed = document.getElementById("speed");
  const keys = document.getElementById("keys");
  const TURN_MS = 1100;
  let now = 0;
  let timer = 0;

  const isReplay = () => replay.classList.contains("replay");

  const go = (turn, { write = true } = {}) => {
    now = Math.min(Math.max(turn, 0), last);
    turns.forEach((each, at) => each.classList.toggle("now", at === now));
    marks.forEach((each, at) => each.classList.toggle("now", at === now));
    document.getElementById("where").textContent = now === last ? `end of ${last} turn${last === 1 ? "" : "s"}` : `turn ${now} of 0–${last - 1}`;
    const target = turns[now].querySelector(".target");
    if (target) {
      const shown = target.closest(".shown");
      shown.scrollTop = target.offsetTop - shown.clientHeight / 2;
    }
    if (write) history.replaceState(null, "", `#turn-${now}`);
    if (!isReplay()) turns[now].scrollIntoView({ block: "start" });
    if (now === last) pause();
  };

  const pause = () => {
    clearTimeout(timer);
    timer = 0;
    button("play").textContent = "▶ Play";
    button("play").setAttribute("aria-label", "Play");
  };
  const schedule = () => {
    timer = setTimeout(() => {
      go(now + 1);
      if (timer) schedule();
    }, TURN_MS / Number(speed.value));
  };
  const play = () => {
    if (timer) return pause();
    if (now === last) go(0);
    button("play").textContent = "|| Pause";
    button("play").setAttribute("aria-label", "Pause");
    schedule();
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

  const actions = {
    first: () => go(0), back: () => { pause(); go(now - 1); }, play, on: () => { pause(); go(now + 1); },
    last: () => go(last), all: transcript, help: () => keys.showModal(),
  };
  const byKey = {
    ArrowLeft: "back", ArrowRight: "on", j: "on", k: "back", Home: "first", End: "last", " ": "play", t: "all", "?": "help",
  };
  const annotation = document.querySelector(".annotation details");
  const links = {
    s: document.querySelector(".attempts .all"),
    n: document.querySelector(".neighbours [rel=next]"),
    p: document.querySelector(".neighbours [rel=prev]"),
  };

  document.addEventListener("keydown", (event) => {
    const at = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey || keys.open || at.matches("select, input, textarea")) return;
    if (event.key === " " && at.closest("button, summary, a")) return;
    if (event.key === "a" && annotation) {
      annotation.open = true;
      annotation.querySelector("[name=new]").focus();
    } else if (links[event.key]) location.href = links[event.key].href;
    else if (event.key === "+" || event.key === "-") faster(event.key === "+" ? 1 : -1);
    else if (byKey[event.key]) actions[byKey[event.key]]();
    else return;
    event.preventDefault();
  });
  replay.addEventListener("click", (event) => {
    const pressed = event.target.closest("[data-go]");
    const mark = event.target.closest("[data-turn]");
    if (pressed) actions[pressed.dataset.go]();
    if (mark) {
      event.preventDefault();
      pause();
      go(Number(mark.dataset.turn));
    }
  });

  // The URL fragment can name a turn, or a cited passage: its turn is shown and the passage is opened.
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

  // Scenes of slow environments are fetched after the page has loaded.
  const deferred = document.getElementById("scenes-later");
  const loadScenes = async () => {
    const link = deferred.querySelector("a");
    link.textContent = "Rendering the scenes of the environment …";
    const response = await fetch(link.href);
    if (!response.ok) {
      link.textContent = "The scenes could not be rendered; try again";
      return;
    }
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const each of page.querySelectorAll(".stage")) document.getElementById(each.id)?.replaceWith(each);
    const note = page.getElementById("scenes-note");
    if (note) deferred.replaceWith(note);
    else deferred.remove();
  };

  replay.querySelector(".buttons").hidden = false;
  replay.classList.add("replay");
  go(0, { write: false });
  follow();
  if (deferred) loadScenes();
})();
