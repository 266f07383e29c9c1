"use strict";
// What a server does on the live site, in pages that were exported and open from disk.
(() => {
  const LINES = 50;

  // The list of episodes: every row is on the page, with what filters look at; this shows the ones that pass.
  const list = (form) => {
    const rows = [...document.querySelectorAll("tr[data-row]")].map((element, at) => ({ element, at, ...JSON.parse(element.dataset.row) }));
    const body = rows.length ? rows[0].element.parentElement : null;
    const status = document.querySelector("#live .status");
    const pages = document.createElement("nav");
    pages.className = "pages";
    pages.setAttribute("aria-label", "Pages of episodes");
    document.querySelector("#live").append(pages);
    let asked = new URLSearchParams(location.search);

    const passes = (row, words) => {
      for (const [name, value] of asked) {
        if (!value || name === "sort" || name === "page" || name === "text") continue;
        if (name === "turns_from" ? row.turns < Number(value) : name === "turns_to" ? row.turns > Number(value) : String(row[name] ?? "") !== value) return false;
      }
      return words.every((word) => word.test(window.agentgymWords[row.at]));
    };
    // Words as the live site finds them: whole ones, the last one perhaps begun only; "in quotes" side by side.
    const searched = (text) => {
      const parts = [...text.matchAll(/"([^"]*)"|([^\s"]+)/g)].map((found) => found[1] ?? found[2]).filter((part) => /[\p{L}\p{N}_]/u.test(part));
      return parts.map((part, at) => {
        const inside = part.match(/[\p{L}\p{N}_]+/gu).join("[^\\p{L}\\p{N}]+");
        const open = at === parts.length - 1 && !text.trimEnd().endsWith('"');
        return new RegExp(`(?<![\\p{L}\\p{N}])${inside}${open ? "" : "(?![\\p{L}\\p{N}])"}`, "iu");
      });
    };
    const ordered = (found) => {
      const name = (asked.get("sort") || "").replace(/^-/, "");
      if (!name) return found;
      const turn = asked.get("sort").startsWith("-") ? -1 : 1;
      return found.sort((one, two) => {
        const [a, b] = [one[name] ?? null, two[name] ?? null];
        if (a === null || b === null) return (a === null) - (b === null) || one.at - two.at;
        return turn * (a < b ? -1 : a > b ? 1 : 0) || one.at - two.at;
      });
    };
    const link = (text, page) => {
      const made = document.createElement("a");
      made.textContent = text;
      const query = new URLSearchParams(asked);
      query.set("page", page);
      made.href = `?${query}`;
      made.addEventListener("click", (event) => { event.preventDefault(); go(query); scrollTo(0, 0); });
      return made;
    };
    const show = () => {
      const words = searched(asked.get("text") || "");
      if (words.length && !window.agentgymWords) return load(show);
      const found = ordered(rows.filter((row) => passes(row, words)));
      const last = Math.max(1, Math.ceil(found.length / LINES));
      const page = Math.min(last, Math.max(1, Number(asked.get("page")) || 1));
      const shown = found.slice((page - 1) * LINES, page * LINES);
      for (const row of rows) row.element.remove();
      for (const row of shown) body.append(row.element);
      status.textContent = `${found.length.toLocaleString("en")} episode${found.length === 1 ? "" : "s"}`;
      const where = document.createElement("span");
      where.textContent = `Page ${page} of ${last}`;
      pages.replaceChildren(...(last > 1 ? [page > 1 ? link("← Previous page", page - 1) : "", where, page < last ? link("Next page →", page + 1) : ""] : []));
      for (const head of document.querySelectorAll("th a[href*='sort=']")) mark(head);
    };
    const mark = (head) => {
      const name = new URL(head.href).searchParams.get("sort").replace(/^-/, "");
      const sort = asked.get("sort") || "";
      const cell = head.closest("th");
      if (sort.replace(/^-/, "") === name) cell.setAttribute("aria-sort", sort.startsWith("-") ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    };
    const load = (then) => {
      status.textContent = "Reading what was said …";
      const script = document.createElement("script");
      script.src = form.dataset.words;
      script.addEventListener("load", then);
      document.head.append(script);
    };
    const go = (query) => {
      asked = query;
      for (const [name, value] of [...query]) if (!value) query.delete(name);
      history.replaceState(null, "", `?${query}`);
      show();
    };
    const filter = () => {
      const query = new URLSearchParams(new FormData(form));
      if (asked.get("sort")) query.set("sort", asked.get("sort"));
      for (const name of ["file", "manner", "task", "run", "step", "part"]) if (!form.elements[name] && asked.get(name)) query.set(name, asked.get(name));
      go(query);
    };
    for (const [name, value] of asked) if (form.elements[name]) form.elements[name].value = value;
    form.addEventListener("input", filter);
    form.addEventListener("submit", (event) => { event.preventDefault(); filter(); });
    for (const head of document.querySelectorAll("th a[href*='sort=']")) {
      const first = new URL(head.href).searchParams.get("sort");
      const second = first.startsWith("-") ? first.slice(1) : `-${first}`;
      head.addEventListener("click", (event) => {
        event.preventDefault();
        const query = new URLSearchParams(asked);
        const next = { [first]: second, [second]: "" };
        query.set("sort", next[asked.get("sort") || ""] ?? first);
        query.delete("page");
        go(query);
      });
    }
    if (rows.length) show();
  };

  // Two episodes, each in a frame.
  const beside = (frames) => {
    const asked = new URLSearchParams(location.search);
    for (const name of ["a", "b"]) {
      const page = asked.get(name) || "";
      if (/^episode\/[\w.-]+\/[\w.-]+\/\d+\.html$/.test(page)) frames.querySelector(`[name="${name}"]`).src = page;
    }
  };

  const on = (selector, start) => { const found = document.querySelector(selector); if (found) start(found); };
  on("form.filters[data-words]", list);
  on(".frames", beside);
})();
