"use strict";
// Replaces the server in exported pages, which open from disk.
(() => {
  const PAGE_SIZE = 50;

  // A list: the page contains every row with its filter values; this shows the matching ones.
  const list = (form) => {
    const rows = [...document.querySelectorAll("tr[data-row]")].map((element, at) => ({ element, at, ...JSON.parse(element.dataset.row) }));
    const body = rows.length ? rows[0].element.parentElement : null;
    const status = document.querySelector("#live .status");
    const pages = document.createElement("nav");
    pages.className = "pages";
    pages.setAttribute("aria-label", "Pages");
    document.querySelector("#live").append(pages);
    let current = new URLSearchParams(location.search);
    const sort = () => current.get("sort") || form.dataset.sort;

    const matchesFilters = (row, words) => {
      for (const [name, value] of current) {
        if (!value || ["sort", "page", "size", "text"].includes(name)) continue;
        const [, column, end] = name.match(/^(.+)_(from|to)$/) ?? [];
        const known = row[column ?? name] ?? null;
        const matches = [known ?? ""].flat().map(String).includes(value.replace(/^!/, "")) !== value.startsWith("!");
        if (column ? known === null || (end === "from" ? known < Number(value) : known > Number(value)) : !matches) return false;
      }
      return words.every((word) => word.test(form.dataset.words ? window.agentgymWords[row.at] : row.text));
    };
    const parts = (text) => [...text.matchAll(/"([^"]*)"|([^\s"]+)/g)].map((found) => found[1] ?? found[2]).filter(Boolean);
    // Runs match by substrings of their rows. Episodes match by the text of their turns, as on the live site: by whole
    // words, of which the last may be a prefix; "in quotes" is a phrase.
    const matchers = (text) => {
      if (!form.dataset.words) return parts(text.toLowerCase()).map((part) => ({ test: (rowText) => rowText.includes(part) }));
      return parts(text).filter((part) => /[\p{L}\p{N}_]/u.test(part)).map((part, at, all) => {
        const inside = part.match(/[\p{L}\p{N}_]+/gu).join("[^\\p{L}\\p{N}]+");
        const open = at === all.length - 1 && !text.trimEnd().endsWith('"');
        return new RegExp(`(?<![\\p{L}\\p{N}])${inside}${open ? "" : "(?![\\p{L}\\p{N}])"}`, "iu");
      });
    };
    const sorted = (found) => {
      const name = sort().replace(/^-/, "");
      if (!name) return found;
      const sign = sort().startsWith("-") ? -1 : 1;
      return found.sort((one, two) => {
        const [a, b] = [one, two].map((row) => [row[name] ?? []].flat().length ? row[name] : null);
        if (a === null || b === null) return (a === null) - (b === null) || one.at - two.at;
        return sign * (a < b ? -1 : a > b ? 1 : 0) || one.at - two.at;
      });
    };
    const link = (text, page) => {
      const made = document.createElement("a");
      made.textContent = text;
      const query = new URLSearchParams(current);
      query.set("page", page);
      made.href = `?${query}`;
      made.addEventListener("click", (event) => { event.preventDefault(); go(query); scrollTo(0, 0); });
      return made;
    };
    const show = () => {
      const words = matchers(current.get("text") || "");
      if (words.length && form.dataset.words && !window.agentgymWords) return load(show);
      const found = sorted(rows.filter((row) => matchesFilters(row, words)));
      const last = Math.max(1, Math.ceil(found.length / PAGE_SIZE));
      const page = Math.min(last, Math.max(1, Number(current.get("page")) || 1));
      const shown = found.slice((page - 1) * PAGE_SIZE, page * PAGE_SIZE);
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
      status.textContent = "Loading the text of the episodes …";
      const script = document.createElement("script");
      script.src = form.dataset.words;
      script.addEventListener("load", then);
      document.head.append(script);
    };
    const go = (query) => {
      current = query;
      for (const [name, value] of [...query]) if (!value) query.delete(name);
      history.replaceState(null, "", `?${query}`);
      show();
    };
    const filter = () => {
      const query = new URLSearchParams(new FormData(form));
      if (current.get("sort")) query.set("sort", current.get("sort"));
      for (const name of ["file", "decoding", "task", "run", "step", "part"]) if (!form.elements[name] && current.get(name)) query.set(name, current.get(name));
      go(query);
    };
    for (const [name, value] of current) if (form.elements[name]) form.elements[name].value = value;
    form.addEventListener("input", filter);
    form.addEventListener("submit", (event) => { event.preventDefault(); filter(); });
    for (const head of document.querySelectorAll("th a[href*='sort=']")) {
      const first = new URL(head.href).searchParams.get("sort");
      const second = first.startsWith("-") ? first.slice(1) : `-${first}`;
      head.addEventListener("click", (event) => {
        event.preventDefault();
        const query = new URLSearchParams(current);
        const next = { [first]: second, [second]: form.dataset.sort === second ? first : "" };
        query.set("sort", next[sort()] ?? first);
        query.delete("page");
        go(query);
      });
    }
    if (rows.length) show();
  };

  // Two episodes side by side, each in an iframe.
  const sideBySide = (frames) => {
    const query = new URLSearchParams(location.search);
    for (const name of ["a", "b"]) {
      const page = query.get(name) || "";
      if (/^episode\/[\w.-]+\/[\w.-]+\/\d+\.html$/.test(page)) frames.querySelector(`[name="${name}"]`).src = page;
    }
  };

  const on = (selector, start) => { const found = document.querySelector(selector); if (found) start(found); };
  on("form.filters[data-many]", list);
  on(".frames", sideBySide);
})();
