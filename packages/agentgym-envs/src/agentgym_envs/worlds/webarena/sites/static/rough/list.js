// Long lists grow as one scrolls: the next entries are fetched when the end of those that are there comes near.
import { adopt, again, make, reloadable } from "./parts.js";

const ENTRIES = 10;
const NEAR = 300; // pixels

/** Return lists, which are sequences of articles or of items of a list, in document order. */
function listsOf(page) {
  const parents = new Set();
  for (const entry of page.querySelectorAll("main :is(article, ul > li, ol > li)")) {
    if (!entry.closest("form, dialog, nav, table, .more-beside, .more-below")) parents.add(entry.parentElement);
  }
  return [...parents];
}

const entriesOf = (list) => [...list.children].filter((node) => node.matches("article, li"));

export function lists(root) {
  if (root !== document || !reloadable()) return;
  listsOf(document).forEach((list, index) => {
    if (entriesOf(list).length > ENTRIES) dress(list, index);
  });
}

function dress(list, index) {
  const entries = entriesOf(list);
  const total = entries.length;
  const end = make(list.matches("ul, ol") ? "li" : "div", { class: "more-entries" });
  const said = make("span", { role: "status" });
  end.append(said);
  entries[ENTRIES - 1].after(end);
  for (const entry of entries.slice(ENTRIES)) entry.remove();
  let shown = ENTRIES;
  let busy = false;
  const describe = () => { said.textContent = `${shown} of ${total}; scroll down for more`; };
  async function more() {
    if (busy || end.getBoundingClientRect().top > innerHeight + NEAR) return;
    busy = true;
    said.textContent = "Loading…";
    const page = await again();
    const found = entriesOf(listsOf(page)[index]).slice(shown, shown + ENTRIES);
    shown += found.length;
    adopt(list, found, end);
    busy = false;
    describe();
    if (shown < total && found.length) return;
    end.remove();
    removeEventListener("scroll", more);
  }
  describe();
  addEventListener("scroll", more);
}
