"""The embedded sites of WebArena in both skins: what the oracle solves, its steps, and the lengths of pages.

    uv run python benchmarks/webarena_skins.py --out skins.json

The oracle plays one task of each template in each skin, for at most 80 steps. What is in the file already isn't played
again, so an interrupted run can be continued. The lengths are those of the whole accessibility tree, in characters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from statistics import mean, median
from typing import Any

from agentgym_envs.core.tasks import Task
from agentgym_envs.worlds.webarena.env import WebArena
from agentgym_envs.worlds.webarena.options import SKINS, Skin
from agentgym_envs.worlds.webarena.page.observation import tree
from harness import arguments, show, write_json

MAX_STEPS = 80
PAGES = {
    "shopping": ("shop.example", ("/", "/category/tents", "/product/100", "/account/orders", "/cart")),
    "shopping_admin": ("admin.shop.example", ("/", "/orders", "/products", "/products/100", "/reports/bestsellers")),
    "reddit": ("forum.example", ("/", "/c/books", "/communities", "/submit", "/u/marlow_reads")),
    "gitlab": (
        "code.example",
        ("/", "/explore", "/wren-games/chess-clock", "/wren-games/chess-clock/-/issues", "/dashboard/issues"),
    ),
    "map": ("map.example", ("/", "/towns", "/town/Selby", "/search?query=museums", "/directions?from=Selby&to=Linden")),
    "wikipedia": ("wiki.example", ("/", "/wiki/Alderwick", "/all", "/categories", "/search?query=castle")),
}
"""Pages whose lengths are compared, by site: its host, and paths."""

Row = dict[str, Any]


def one_task_per_template(tasks: Sequence[Task]) -> list[Task]:
    """Return one task per template, each at a different position, so that all splits occur."""
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.cluster, []).append(task)
    return [group[i % len(group)] for i, group in enumerate(groups.values())]


def play(env: WebArena, task: Task, skin: Skin) -> Row:
    """Let the oracle play a task."""
    _, info = env.reset(options={"task": task.id})
    steps, terminated = 0, False
    while not terminated and steps < MAX_STEPS:
        _, _, terminated, _, info = env.step(env.oracle())
        steps += 1
    return {"skin": skin, "template": task.cluster, "task": task.id, "steps": steps, "success": info["success"]}


def episodes(skin: Skin, tasks: Sequence[Task], concurrent: int) -> Iterator[Row]:
    """Play tasks in one skin, several at a time."""
    with ExitStack() as stack, ThreadPoolExecutor(concurrent) as threads:
        idle: SimpleQueue[WebArena] = SimpleQueue()
        for _ in range(concurrent):
            env = WebArena(skin=skin)
            stack.callback(env.close)
            idle.put(env)

        def run(task: Task) -> Row:
            env = idle.get()
            try:
                return play(env, task, skin)
            finally:
                idle.put(env)

        yield from threads.map(run, tasks)


def lengths(skin: Skin) -> Iterator[Row]:
    """Yield the length of each of `PAGES`."""
    env = WebArena(skin=skin)
    try:
        for site, (host, paths) in PAGES.items():
            task = next(task for task in env.tasks if list(task.payload["sites"]) == [site])
            env.reset(options={"task": task.id})
            for path in paths:
                env.step(f"goto [http://{host}{path}]")
                page = env._seen.page  # pyright: ignore[reportPrivateUsage]
                yield {"skin": skin, "site": site, "page": path, "chars": len(tree(page, True, 1 << 30))}
    finally:
        env.close()


def report(rows: Sequence[Row]) -> None:
    """Print how both skins compare."""
    table = []
    for skin in SKINS:
        played = [row for row in rows if row["skin"] == skin and "template" in row]
        if played:
            steps = [row["steps"] for row in played]
            solved = f"{sum(row['success'] for row in played)} of {len(played)}"
            spread = {"mean": f"{mean(steps):.1f}", "median": f"{median(steps):g}", "most": str(max(steps))}
            table.append({"skin": skin, "solved": solved, **spread})
    if table:
        show("The oracle's episodes and their steps", table)
    chars = {(row["skin"], row["site"], row["page"]): row["chars"] for row in rows if "page" in row}
    lines = []
    for site, (_, paths) in PAGES.items():
        if all((skin, site, path) in chars for skin in SKINS for path in paths):
            ratios = [chars["rough", site, path] / chars["plain", site, path] for path in paths]
            shown = {"mean": mean(ratios), "least": min(ratios), "most": max(ratios)}
            lines.append({"site": site, **{name: f"{ratio:.1f}" for name, ratio in shown.items()}})
    if lines:
        show("Length of the tree, rough to plain", lines)


def main() -> None:
    """Play, measure and report."""
    parser = arguments(__doc__, "out")
    parser.add_argument("--skins", nargs="+", choices=SKINS, default=list(SKINS), help="the skins to play")
    parser.add_argument("--every", type=int, default=1, help="play every n-th template only")
    parser.add_argument("--concurrent", type=int, default=4, help="episodes at a time")
    settings = parser.parse_args()
    out: Path | None = settings.out
    rows: list[Row] = json.loads(out.read_bytes()) if out is not None and out.exists() else []
    tasks = one_task_per_template(list(WebArena().tasks))[:: settings.every]
    for skin in settings.skins:
        if not any(row["skin"] == skin and "page" in row for row in rows):
            rows += lengths(skin)
            write_json(out, rows)
        known = {row["task"] for row in rows if row["skin"] == skin and "task" in row}
        for row in episodes(skin, [task for task in tasks if task.id not in known], settings.concurrent):
            rows.append(row)
            write_json(out, rows)
            outcome = "solved" if row["success"] else "NOT SOLVED"
            print(f"{skin} {row['template']}: {outcome} in {row['steps']} steps", flush=True)
    report(rows)


if __name__ == "__main__":
    main()
