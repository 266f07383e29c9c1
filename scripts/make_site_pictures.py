"""Write docs/webarena/*.png: screenshots of the embedded sites in an agent's browser, in both skins.

Run `uv run python scripts/make_site_pictures.py`, with names of pictures for some of them only, and check them by eye.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from agentgym_envs.worlds.webarena.env import WebArena
from agentgym_envs.worlds.webarena.options import Skin
from PIL import Image

FOLDER = Path(__file__).parent.parent / "docs" / "webarena"
COLOURS = 128


@dataclass(frozen=True, slots=True)
class Picture:
    """A page to take a picture of."""

    site: str
    url: str
    skin: Skin = "plain"
    actions: tuple[tuple[str, str, str], ...] = ()
    """An action with `#` in place of an id, and the role and the name of its element."""


ACCEPT = ("click [#]", "button", "Accept all")
SHOP, ADMIN, FORUM = "http://shop.example", "http://admin.shop.example", "http://forum.example"
CODE, MAP, WIKI = "http://code.example/wren-games/chess-clock", "http://map.example", "http://wiki.example"
PICTURES = {
    "shop": Picture("shopping", f"{SHOP}/category/tents"),
    "shop_admin": Picture("shopping_admin", f"{ADMIN}/"),
    "forum": Picture("reddit", f"{FORUM}/"),
    "code": Picture("gitlab", CODE),
    "map": Picture("map", f"{MAP}/"),
    "wiki": Picture("wikipedia", f"{WIKI}/wiki/Alderwick"),
    "shop_rough": Picture(
        "shopping", f"{SHOP}/category/tents", "rough", (ACCEPT, ("click [#]", "combobox", "Material"))
    ),
    "shop_admin_rough": Picture(
        "shopping_admin", f"{ADMIN}/products/100", "rough", (ACCEPT, ("click [#]", "button", "Save product…"))
    ),
    "forum_rough": Picture("reddit", f"{FORUM}/", "rough"),
    "code_rough": Picture("gitlab", f"{CODE}/-/issues", "rough", (ACCEPT, ("hover [#]", "button", "Main"))),
    "map_rough": Picture("map", f"{MAP}/", "rough", (ACCEPT, ("click [#]", "combobox", "Travel by"))),
    "wiki_rough": Picture(
        "wikipedia",
        f"{WIKI}/wiki/Alderwick",
        "rough",
        (ACCEPT, ("type [#] [castle] [0]", "searchbox", "Search Gazetteer")),
    ),
}


def take(picture: Picture) -> Image.Image:
    """Return the screenshot of a page."""
    with closing(WebArena(skin=picture.skin, render_mode="rgb_array")) as env:
        task = next(task for task in env.tasks if list(task.payload["sites"]) == [picture.site])
        env.reset(seed=0, options={"task": task.id})
        env.step(f"goto [{picture.url}]")
        for action, role, name in picture.actions:
            node = env._seen.page.find(role, name)[0]  # pyright: ignore[reportPrivateUsage]
            env.step(action.replace("#", str(node.id)))
        return Image.fromarray(np.asarray(env.render()))


def main() -> None:
    """Save each picture with a reduced palette."""
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or PICTURES:
        image = take(PICTURES[name]).resize((960, 540), Image.Resampling.LANCZOS)
        image.quantize(COLOURS).save(FOLDER / f"{name}.png", optimize=True)
        print(name)


if __name__ == "__main__":
    main()
