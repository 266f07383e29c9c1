"""How fast each registered world steps and resets, and what it needs of memory, with one and with many of it.

    uv run python benchmarks/worlds.py --seconds 5 --worlds 1 8 32 --out worlds.json

The worlds take turns in one thread; those of AT_ONCE, whose work is done in other processes, are played at once, each
in a thread of its own: then the rates are of all together, and the milliseconds what one call takes among the others.
Actions are drawn from `info["available_actions"]`, or are the oracle's (not timed) where a world can't list them; tasks
are the first ones of the training split. Every row is measured in a process of its own; memory is that of this process
and of all that it started (a JVM, a browser), beyond what Python needs without.
Then what SearchQA searches with is measured, as in `retrieval.py`: queries/s of 1 and 16 callers, indexing, memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
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
AT_ONCE = {"agentgym/WebArena-v0": (1, 4, 16, 64)}
"""Worlds that are played at once, and how many."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured of some worlds of one kind."""

    world: str
    worlds: int
    steps: int
    resets: int
    faults: int
    steps_per_second: float
    resets_per_second: float
    ms_per_step: float
    ms_per_reset: float
    megabytes: float


class Player:
    """Plays episodes in some worlds by turns; time spent choosing actions isn't counted."""

    def __init__(self, envs: list[gymnasium.Env[str, str]], seed: int) -> None:
        self.envs = envs
        self.spent: Counter[str] = Counter()
        self.count: Counter[str] = Counter()
        self._rng = np.random.default_rng(seed)
        self._tasks = agentgym_envs.text_env(envs[0]).tasks.train.ids[:TASKS]
        self._infos: list[dict[str, Any] | None] = [None] * len(envs)

    def begin(self) -> None:
        """The first reset starts simulators and reads tables; it isn't timed."""
        for i, env in enumerate(self.envs):
            env.reset(options={"task": self._tasks[i % len(self._tasks)]})

    def play(self, seconds: float) -> None:
        """Play until so many seconds were spent in the worlds, and each was begun and played."""
        while self.spent.total() < seconds or min(self.count["step"], self.count["reset"]) < len(self.envs):
            for i, env in enumerate(self.envs):
                try:
                    self._turn(i, env)
                except agentgym_envs.EnvFault:
                    self.count["fault"] += 1
                    self._infos[i] = None

    def _turn(self, i: int, env: gymnasium.Env[str, str]) -> None:
        info = self._infos[i]
        if info is None:
            task = self._tasks[int(self._rng.integers(len(self._tasks)))]
            _, info = self._timed("reset", env.reset, options={"task": task})
        *_, terminated, truncated, info = self._timed("step", env.step, choose(env, info, self._rng))
        self._infos[i] = None if terminated or truncated else info

    def _timed(self, what: str, call: Any, *args: Any, **options: Any) -> Any:
        began = time.perf_counter()
        result = call(*args, **options)
        self.spent[what] += time.perf_counter() - began
        self.count[what] += 1
        return result


def measure(world: str, worlds: int, seconds: float, *, at_once: bool) -> Speed:
    """Play for about `seconds`, all worlds by turns in one thread or each at once in a thread of its own."""
    before = memory()
    with ExitStack() as stack:
        envs = [stack.enter_context(closing(agentgym_envs.make(world))) for _ in range(worlds)]
        players = [Player([env], i) for i, env in enumerate(envs)] if at_once else [Player(envs, 0)]
        with ThreadPoolExecutor(len(players)) as threads:
            list(threads.map(Player.begin, players))
            list(threads.map(lambda player: player.play(seconds), players))
        needed = memory() - before
    count = sum((player.count for player in players), Counter[str]())
    spent = sum((player.spent for player in players), Counter[str]())
    rates = [sum(player.count[what] / player.spent[what] for player in players) for what in ("step", "reset")]
    calls = [1000 * spent[what] / count[what] for what in ("step", "reset")]
    return Speed(world, worlds, count["step"], count["reset"], count["fault"], *rates, *calls, needed / 2**20)


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
    parser.add_argument("--worlds", type=int, nargs="+", help="how many of each world; 1 8 32 if not given, or AT_ONCE")
    parser.add_argument("--only", help="the worlds with this in their name, and no retrieval")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    asked = parser.parse_args()
    speeds: list[Speed] = []
    print(
        f"{'world':<24}{'worlds':>8}{'steps/s':>10}{'ms/step':>10}{'resets/s':>10}{'ms/reset':>10}{'MB':>8}{'faults':>8}"
    )
    for world in agentgym_envs.WORLDS:
        if (asked.only or "").lower() not in world.id.lower():
            continue
        for worlds in asked.worlds or AT_ONCE.get(world.id, (1, 8, 32)):
            try:
                speed = apart(world.id, worlds, asked.seconds)
            except DependencyNotInstalled as missing:
                print(f"{world.id:<24}  {missing}")
                break
            speeds.append(speed)
            steps = f"{speed.steps_per_second:>10,.0f}{speed.ms_per_step:>10.2f}"
            resets = f"{speed.resets_per_second:>10,.0f}{speed.ms_per_reset:>10.2f}"
            print(f"{world.id:<24}{worlds:>8}{steps}{resets}{speed.megabytes:>8,.0f}{speed.faults:>8}", flush=True)
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
        return process.submit(measure, world, worlds, seconds, at_once=world in AT_ONCE).result()


if __name__ == "__main__":
    main()
