"""Play the scripts of MiniWoB++'s pages, and record what they reach in `pages.json` and in the table of the docs.

What a page needs an agent to see is decided by hand, in `NEEDS` here.

    uv run --group dev scripts/make_miniwob_pages.py             # play all pages with a script
    uv run --group dev scripts/make_miniwob_pages.py click-pie   # play these pages only
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agentgym_envs import make, text_env
from agentgym_envs.worlds.webarena.miniwob.page_server import html_folder
from agentgym_envs.worlds.webarena.miniwob.pages import NEEDS as GROUPS
from agentgym_envs.worlds.webarena.miniwob.pages import Needs, Page, pages
from agentgym_envs.worlds.webarena.miniwob.scripts import SCRIPTS
from agentgym_envs.worlds.webarena.miniwob.tasks import SEEDS

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "packages/agentgym-envs/src/agentgym_envs/worlds/webarena/miniwob/pages.json"
TABLE = ROOT / "docs/webarena/miniwob.md"
EPISODES, MAX_STEPS, THREADS = 3, 30, 4

_ICONS = "what distinguishes its elements are pictures or colors"
_SHAPES = "shapes and colors are drawn"
_POINTS = "what is drawn has no text"
NEEDS: Mapping[Needs, Mapping[str, str]] = {
    "positions": {
        "ascending-numbers": "squares cover the numbers after the first click",
        "daily-calendar": "what is free is where no event is",
        "drag-box": "one box belongs at a point within the other",
        "drag-circle": "it is dragged to a point beside it",
        "drag-single-shape": "it is dragged to a point beside it",
        "find-greatest": "hidden cards have no text: they are picked at points",
        "hot-cold": "points are tried, and the text says how near they are",
        "resize-textarea": "its corner is dragged to a point",
    },
    "pixels": {
        "bisect-angle": _POINTS,
        "circle-center": _POINTS,
        "click-color": _ICONS,
        "click-menu-2": "in half of the problems, an icon stands for the entry",
        "click-shades": _ICONS,
        "click-shape": _SHAPES,
        "click-widget": "a text area looks like a text field in the text",
        "count-shape": _SHAPES,
        "count-sides": "the shape is drawn on a canvas",
        "drag-cube": "which side faces the user is a matter of perspective",
        "drag-shapes": _SHAPES,
        "drag-shapes-2": _SHAPES,
        "draw-circle": _POINTS,
        "draw-line": _POINTS,
        "find-midpoint": _POINTS,
        "identify-shape": _SHAPES,
        "right-angle": _POINTS,
        "text-editor": "in some of the problems, the swatches of its colors have no text",
        "tic-tac-toe": "the marks are pictures",
        "use-colorwheel-2": "the color is shown",
        "visual-addition": "the blocks have no text",
    },
    "time": {
        "button-delay": "the second click belongs some seconds after the first, which a slow agent misses",
        "chase-circle": "the circle moves all the time",
        "hover-shape": "another square is colored every two seconds, and the page never gives a reward",
        "moving-items": "the circles move all the time",
        "simon-says": "the buttons light up for a quarter of a second each, once",
        "stock-market": "the price changes ten times a second",
    },
}
_INTRODUCTION = """\
# The pages of MiniWoB++

`scripts/make_miniwob_pages.py` has written this page; [webarena.md](../webarena.md#miniwob) describes the task set.
Of the {all} pages, scripts succeed on {solved} in all of {episodes} test problems, on {some} in some.
{unscripted} have no script, and the oracle refuses them: {names}.
"""


def main() -> None:
    """Play the named pages, or all, and write both files."""
    names = sorted(path.stem for path in (html_folder() / "miniwob").glob("*.html"))
    recorded = dict(pages()) if PAGES.exists() else {}
    played = sys.argv[1:] or names
    threads = threading.local()
    with ThreadPoolExecutor(THREADS) as pool:
        for page in pool.map(_played, played, [threads] * len(played)):
            recorded[page.name] = page
            print(f"{page.name}: {page.solved} of {page.played}, {page.steps} steps", flush=True)
            _write({name: recorded.get(name, _unplayed(name)) for name in names})


def _write(current: Mapping[str, Page]) -> None:
    text = json.dumps({name: _fields(page) for name, page in current.items()}, indent=2)
    PAGES.write_text(f"{text}\n", encoding="utf-8")
    TABLE.write_text(table(current), encoding="utf-8")


def table(current: Mapping[str, Page]) -> str:
    """Return the text of the docs' page."""
    unscripted = [name for name in current if name not in SCRIPTS]
    head = _INTRODUCTION.format(
        all=len(current),
        solved=sum(page.solved == page.played > 0 for page in current.values()),
        some=sum(0 < page.solved < page.played for page in current.values()),
        episodes=EPISODES,
        unscripted=len(unscripted),
        names=", ".join(f"`{name}`" for name in unscripted),
    )
    return "\n".join([head, *_tables(current)])


def _tables(current: Mapping[str, Page]) -> Iterator[str]:
    for group, meaning in GROUPS.items():
        chosen = [page for page in current.values() if page.needs == group]
        yield f"## `{group}`: {len(chosen)} pages that need {meaning}\n"
        reason = "" if group == "text" else " why |"
        yield f"| page | script reaches the reward | steps |{reason}"
        yield f"|---|--:|--:|{'---|' if reason else ''}"
        for page in chosen:
            solved = f"{page.solved} of {page.played} | {page.steps}" if page.played else "no script | –"
            yield f"| `{page.name}` | {solved} |{f' {page.reason} |' if reason else ''}"
        yield ""


def _needs(name: str) -> tuple[Needs, str]:
    for group, reasons in NEEDS.items():
        if name in reasons:
            return group, reasons[name]
    return "text", ""


def _unplayed(name: str) -> Page:
    return Page(name, *_needs(name), solved=0, played=0, steps=1)


def _fields(page: Page) -> dict[str, str | int]:
    needs, reason = _needs(page.name)
    return {
        "needs": needs,
        "reason": reason,
        "solved": page.solved,
        "played": page.played,
        "steps": page.steps,
    }


def _played(name: str, threads: threading.local) -> Page:
    if name not in SCRIPTS:
        return _unplayed(name)
    if not hasattr(threads, "env"):
        threads.env = make("agentgym/WebArena-v0", task_set="miniwob", pages="all", max_episode_steps=MAX_STEPS)
    lengths = [_steps(threads.env, name, seed) for seed in SEEDS["test"][:EPISODES]]
    solved = [steps for steps in lengths if steps]
    median = int(statistics.median_high(solved)) if solved else 1
    return Page(name, *_needs(name), solved=len(solved), played=EPISODES, steps=median)


def _steps(env: Any, name: str, seed: int) -> int:
    """Play a problem and return the number of actions, or 0 without success."""
    _, info = env.reset(options={"task": f"webarena/miniwob/{name}/{seed}"})
    for steps in range(1, MAX_STEPS + 1):
        *_, terminated, truncated, info = env.step(text_env(env).oracle())
        if terminated or truncated:
            return steps if info["success"] else 0
    return 0


if __name__ == "__main__":
    main()
