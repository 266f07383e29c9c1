"""Write docs/webarena/*.png: a screenshot of each embedded site in an agent's browser.

Run `uv run python scripts/make_site_pictures.py`, and check the pictures by eye.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
from agentgym_envs import make
from PIL import Image

FOLDER = Path(__file__).parent.parent / "docs" / "webarena"
PAGES = {
    "shop": "http://shop.example/category/tents",
    "shop_admin": "http://admin.shop.example/",
    "forum": "http://forum.example/",
    "code": "http://code.example/wren-games/chess-clock",
    "map": "http://map.example/",
    "wiki": "http://wiki.example/wiki/Alderwick",
}
COLOURS = 128


def main() -> None:
    """Save a screenshot of each page, with a reduced palette."""
    FOLDER.mkdir(exist_ok=True)
    with closing(make("agentgym/WebArena-v0", render_mode="rgb_array")) as env:
        env.reset(seed=0)
        for name, url in PAGES.items():
            env.step(f"goto [{url}]")
            picture = Image.fromarray(np.asarray(env.render())).resize((960, 540), Image.Resampling.LANCZOS)
            picture.quantize(COLOURS).save(FOLDER / f"{name}.png", optimize=True)
            print(f"{name}: {url}")


if __name__ == "__main__":
    main()
