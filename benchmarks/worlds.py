"""How fast each registered world steps and resets, and what it needs of memory, with one and with many of it.

    uv run python benchmarks/worlds.py --seconds 5 --worlds 1 8 32 --out worlds.json

The worlds take turns in one thread. Actions are drawn from `info["available_actions"]`, or are the oracle's (not timed)
where a world can't list them; tasks are the first ones of the training split. Every row is measured in a process of its
own; memory is that of this process and of all that it started (a JVM, a browser), beyond what Python needs without.
Then what SearchQA searches with is measured, as in `retrieval.py`: queries/s of 1 and 16 callers, indexing, memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import agentgym_envs
import gymnasium
import numpy as np
import psutil
import retrieval  # the file beside this one
from gymnasium.error import DependencyNotInstalled

TASKS = 8


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured of some worlds of one kind."""

    world: str
    worlds: int
    steps: int
    resets: int
    steps_per_second: float
    resets_per_second: float
    megabytes: float


def measure(world: str, worlds: int, seconds: float) -> Speed:
    """Play episodes for about `seconds`; time spent choosing actions isn't counted."""
    before = memory()
    rng = np.random.default_rng(0)
    spent: Counter[str] = Counter()
    count: Counter[str] = Counter()

    def timed(what: str, call: Any, *args: Any, **options: Any) -> Any:
        began = time.perf_counter()
        result = call(*args, **options)
        spent[what] += time.perf_counter() - began
        count[what] += 1
        return result

    with ExitStack() as stack:
        envs = [stack.enter_context(closing(agentgym_envs.make(world))) for _ in range(worlds)]
        tasks = agentgym_envs.text_env(envs[0]).tasks.train.ids[:TASKS]
        for i, env in enumerate(envs):  # the first reset starts simulators and reads tables
            env.reset(options={"task": tasks[i % len(tasks)]})
        infos: list[dict[str, Any] | None] = [None] * worlds
        while spent.total() < seconds or min(count["step"], count["reset"]) < worlds:
            for i, env in enumerate(envs):
                info = infos[i]
                if info is None:
                    task = tasks[count["reset"] % len(tasks)]
                    _, info = timed("reset", env.reset, options={"task": task})
                *_, terminated, truncated, info = timed("step", env.step, choose(env, info, rng))
                infos[i] = None if terminated or truncated else info
        needed = memory() - before
    rates = (count[what] / spent[what] for what in ("step", "reset"))
    return Speed(world, worlds, count["step"], count["reset"], *rates, needed / 2**20)


def choose(env: gymnasium.Env[str, str], info: dict[str, Any], rng: np.random.Generator) -> str:
    """A random available action, or the oracle's where they aren't listed."""
    available = info["available_actions"]
    return agentgym_envs.text_env(env).oracle() if available is None else available[rng.integers(len(available))]


def memory() -> int:
    """Resident bytes of this process and its descendants."""
    this = psutil.Process()
    return sum(process.memory_info().rss for process in (this, *this.children(recursive=True)))


def main() -> None:
    """Measure all worlds, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="time per row")
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 8, 32], help="how many of each world")
    parser.add_argument("--only", help="the worlds with this in their name, and no retrieval")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    asked = parser.parse_args()
    speeds: list[Speed] = []
    print(f"{'world':<24}{'worlds':>8}{'steps/s':>10}{'ms/step':>10}{'resets/s':>10}{'ms/reset':>10}{'MB':>8}")
    for world in agentgym_envs.WORLDS:
        if (asked.only or "").lower() not in world.id.lower():
            continue
        for worlds in asked.worlds:
            try:
                speed = apart(world.id, worlds, asked.seconds)
            except DependencyNotInstalled as missing:
                print(f"{world.id:<24}  {missing}")
                break
            speeds.append(speed)
            steps, resets = speed.steps_per_second, speed.resets_per_second
            figures = f"{steps:>10,.0f}{1000 / steps:>10.2f}{resets:>10,.0f}{1000 / resets:>10.2f}"
            print(f"{world.id:<24}{worlds:>8}{figures}{speed.megabytes:>8,.0f}", flush=True)
    costs: list[retrieval.Cost] = []
    if not asked.only:
        costs = retrieval.compare(retrieval.BACKENDS, None, asked.seconds)
        retrieval.show(costs)
    if asked.out is not None:
        figures = {"worlds": [asdict(speed) for speed in speeds], "retrieval": [asdict(cost) for cost in costs]}
        asked.out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def apart(world: str, worlds: int, seconds: float) -> Speed:
    """`measure` in a fresh process, so that no row inherits another's memory or caches."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, world, worlds, seconds).result()


if __name__ == "__main__":
    main()
