// The rough skin: turns the plain controls of a page into the widgets of large web applications.
import { calendars } from "./calendar.js";
import { comboboxes } from "./combobox.js";
import { consent } from "./consent.js";
import { editors } from "./editor.js";
import { forms } from "./forms.js";
import { grids } from "./grid.js";
import { icons } from "./icons.js";
import { lists } from "./list.js";
import { menus } from "./menu.js";
import { searches } from "./search.js";
import { notices } from "./toast.js";

const widgets = [consent, notices, menus, searches, comboboxes, calendars, editors, forms, icons, grids, lists];

function enhance(root) {
  for (const widget of widgets) widget(root);
}

enhance(document);
// Parts that arrive later are enhanced too; the sites' own scripts listen to the same event.
document.addEventListener("content", (event) => enhance(event.target));
