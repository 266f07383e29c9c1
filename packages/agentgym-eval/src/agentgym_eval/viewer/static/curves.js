"use strict";
// Charts of curves: the legend hides lines, and the values at the pointer are shown. Everything else is rendered by the
// server, or in an export is already in the page.
(() => {
  const MOST = 14; // lines with values at the pointer
  const hidden = new Set();
  const apply = () => {
    for (const line of document.querySelectorAll(".curve [data-line]")) line.classList.toggle("off", hidden.has(line.dataset.line));
    for (const entry of document.querySelectorAll(".runs-legend [data-line]")) {
      const off = hidden.has(entry.dataset.line);
      const button = entry.querySelector(".swatch");
      entry.classList.toggle("hidden", off);
      button.disabled = false;
      button.setAttribute("aria-pressed", String(!off));
    }
  };
  document.addEventListener("click", (event) => {
    const line = event.target.closest(".swatch")?.closest("[data-line]")?.dataset.line;
    if (line === undefined) return;
    hidden.has(line) ? hidden.delete(line) : hidden.add(line);
    apply();
  });
  document.addEventListener("input", (event) => {
    if (event.target.matches(".slider input")) event.target.nextElementSibling.value = Number(event.target.value).toFixed(2);
  });

  // The search in an export.
  const search = document.querySelector("form.in-page");
  if (search) {
    search.hidden = false;
    search.addEventListener("submit", (event) => event.preventDefault());
    search.addEventListener("input", (event) => {
      const words = event.target.value.toLowerCase().split(/\s+/);
      for (const chart of document.querySelectorAll(".curve")) {
        const name = chart.querySelector("figcaption").textContent.toLowerCase();
        chart.hidden = !words.every((word) => name.includes(word));
      }
      for (const section of document.querySelectorAll("details.section")) {
        section.hidden = !section.querySelector(".curve:not([hidden])");
        section.open ||= words.some(Boolean);
      }
    });
  }

  const read = (text) => (text ? text.split(" ").map(Number) : []);
  const nearest = (xs, x) => {
    let [low, high] = [0, xs.length - 1];
    while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] < x) low = middle; else high = middle; }
    return x - xs[low] <= xs[high] - x ? low : high;
  };
  const format = (value) => Number(value.toPrecision(4)).toString();
  let shown = null;
  const clear = () => { for (const each of document.querySelectorAll(".readout, .curve .cursor")) each.remove(); shown = null; };
  const values = (line, at) => {
    const smooth = line.dataset.smooth ? read(line.dataset.smooth)[at] : null;
    const y = read(line.dataset.y)[at];
    const band = line.dataset.low ? ` [${format(read(line.dataset.low)[at])}, ${format(read(line.dataset.high)[at])}]` : "";
    return { sort: smooth ?? y, text: (smooth === null ? format(y) : `${format(smooth)} (${format(y)})`) + band };
  };
  const cursor = (svg, x) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", "line");
    for (const [name, value] of Object.entries({ class: "cursor", x1: x, x2: x, y1: 0, y2: svg.viewBox.baseVal.height })) made.setAttribute(name, value);
    svg.append(made);
  };
  const row = (className, name, text) => {
    const made = document.createElement("div");
    const [label, value] = [document.createElement("span"), document.createElement("span")];
    label.className = className;
    [label.textContent, value.textContent] = [name, text];
    made.append(label, value);
    return made;
  };
  const readout = (svg, fraction) => {
    const figure = svg.closest(".curve");
    const lines = [...svg.querySelectorAll("[data-line]:not(.off)")].map((line) => ({ line, xs: read(line.dataset.x) }));
    if (!lines.length) return clear();
    const [low, high] = [Math.min(...lines.map(({ xs }) => xs[0])), Math.max(...lines.map(({ xs }) => xs.at(-1)))];
    const all = [...svg.querySelectorAll("[data-line]")].map((line) => read(line.dataset.x));
    const [start, end] = [Math.min(...all.map((xs) => xs[0])), Math.max(...all.map((xs) => xs.at(-1)))];
    const x = Math.min(high, Math.max(low, start + fraction * (end - start)));
    const best = lines.map(({ xs }) => xs[nearest(xs, x)]).reduce((one, two) => (Math.abs(two - x) < Math.abs(one - x) ? two : one));
    clear();
    const box = document.createElement("div");
    box.className = "readout";
    const head = document.createElement("p");
    head.textContent = `${svg.dataset.xLabel} ${format(best)}`;
    // A line without a point at exactly this position shows its last one before; one that begins later shows none.
    const found = lines.map(({ line, xs }) => {
      const at = nearest(xs, best);
      const point = xs[at] > best && at > 0 ? at - 1 : at;
      return xs[point] > best || best > xs.at(-1) ? null : { line, ...values(line, point) };
    }).filter(Boolean).sort((one, two) => two.sort - one.sort);
    box.append(head, ...found.slice(0, MOST).map(({ line, text }) => row(line.getAttribute("class"), line.dataset.name, text)));
    if (found.length > MOST) box.append(row("", `${found.length - MOST} more`, ""));
    const [left, right] = [Number(svg.dataset.left), Number(svg.dataset.right)];
    const position = end > start ? (best - start) / (end - start) : 0.5;
    cursor(svg, left + position * (right - left));
    position < 0.5 ? (box.style.right = "0.6rem") : (box.style.left = "3.6rem");
    figure.append(box);
    shown = { svg, fraction };
  };
  const point = (event) => {
    const svg = event.target.closest?.(".curve svg");
    if (!svg) return clear();
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const [left, right] = [Number(svg.dataset.left), Number(svg.dataset.right)];
    readout(svg, ((event.clientX - box.left) * scale - left) / (right - left));
  };
  document.addEventListener("pointermove", point);
  document.addEventListener("pointerdown", point);
  document.addEventListener("htmx:after:swap", () => {
    const again = shown;
    apply();
    if (again?.svg.isConnected) readout(again.svg, again.fraction); else clear();
  });
  apply();
})();
