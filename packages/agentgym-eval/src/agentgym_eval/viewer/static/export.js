"use strict";
// What a server does on the live site, in pages that were exported and open from disk.
(() => {
  const LINES = 50;

  // A list: every row is on the page, with what filters look at; this shows the ones that pass.
  const list = (form) => {
    const rows = [...document.querySelectorAll("tr[data-row]")].map((element, at) => ({ element, at, ...JSON.parse(element.dataset.row) }));
    const body = rows.length ? rows[0].element.parentElement : null;
    const status = document.querySelector("#live .status");
    const pages = document.createElement("nav");
    pages.className = "pages";
    pages.setAttribute("aria-label", "Pages");
    document.querySelector("#live").append(pages);
    let asked = new URLSearchParams(location.search);
    const sort = () => asked.get("sort") || form.dataset.sort;

    const passes = (row, words) => {
      for (const [name, value] of asked) {
        if (!value || ["sort", "page", "size", "text"].includes(name)) continue;
        const [, column, end] = name.match(/^(.+)_(from|to)$/) ?? [];
        const known = row[column ?? name] ?? null;
        const among = [known ?? ""].flat().map(String).includes(value.replace(/^!/, "")) !== value.startsWith("!");
        if (column ? known === null || (end === "from" ? known < Number(value) : known > Number(value)) : !among) return false;
      }
      return words.every((word) => word.test(form.dataset.words ? window.agentgymWords[row.at] : row.text));
    };
    const parts = (text) => [...text.matchAll(/"([^"]*)"|([^\s"]+)/g)].map((found) => found[1] ?? found[2]).filter(Boolean);
    // What rows themselves say is found by any part of a word; what was said in an episode as the live site finds it:
    // by whole words, the last one perhaps begun only; "in quotes" side by side.
    const searched = (text) => {
      if (!form.dataset.words) return parts(text.toLowerCase()).map((part) => ({ test: (said) => said.includes(part) }));
      return parts(text).filter((part) => /[\p{L}\p{N}_]/u.test(part)).map((part, at, all) => {
        const inside = part.match(/[\p{L}\p{N}_]+/gu).join("[^\\p{L}\\p{N}]+");
        const open = at === all.length - 1 && !text.trimEnd().endsWith('"');
        return new RegExp(`(?<![\\p{L}\\p{N}])${inside}${open ? "" : "(?![\\p{L}\\p{N}])"}`, "iu");
      });
    };
    const ordered = (found) => {
      const name = sort().replace(/^-/, "");
      if (!name) return found;
      const turn = sort().startsWith("-") ? -1 : 1;
      return found.sort((one, two) => {
        const [a, b] = [one, two].map((row) => [row[name] ?? []].flat().length ? row[name] : null);
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
      if (words.length && form.dataset.words && !window.agentgymWords) return load(show);
      const found = ordered(rows.filter((row) => passes(row, words)));
      const last = Math.max(1, Math.ceil(found.length / LINES));
      const page = Math.min(last, Math.max(1, Number(asked.get("page")) || 1));
      const shown = found.slice((page - 1) * LINES, page * LINES);
      for (const row of rows) row.element.remove();
      for (const row of shown) body.append(row.element);
      status.textContent = `${found.length.toLocaleString("en")} ${found.length === 1 ? form.dataset.one : form.dataset.many}`;
      const where = document.createElement("span");
      where.textContent = `Page ${page} of ${last}`;
      pages.replaceChildren(...(last > 1 ? [page > 1 ? link("← Previous page", page - 1) : "", where, page < last ? link("Next page →", page + 1) : ""] : []));
      for (const head of document.querySelectorAll("th a[href*='sort=']")) mark(head);
    };
    const mark = (head) => {
      const name = new URL(head.href).searchParams.get("sort").replace(/^-/, "");
      const cell = head.closest("th");
      if (sort().replace(/^-/, "") === name) cell.setAttribute("aria-sort", sort().startsWith("-") ? "descending" : "ascending");
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
        const next = { [first]: second, [second]: form.dataset.sort === second ? first : "" };
        query.set("sort", next[sort()] ?? first);
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
  on("form.filters[data-many]", list);
  on(".frames", beside);
})();
