"""How fast each registered world steps and resets, and what it needs of memory, with one and with many of it.

    uv run python benchmarks/worlds.py --seconds 5 --worlds 1 8 32 --out worlds.json

The worlds take turns in one thread; those of AT_ONCE, whose work is done in other processes, are played at once, each
in a thread of its own: then the rates are of all together, and the milliseconds what one call takes among the others.
Actions are drawn from `info["available_actions"]`, or are the oracle's (not timed) where a world can't list them; tasks
are the first of the training split: TASKS, or MANY of worlds that answer within milliseconds. Every row is measured in
a process of its own; memory is that of this process and of all that it started (a JVM, a browser), beyond what Python
needs without.
Then come the backends of `EnvPool` that suit each world and what they cost per step, as in `pools.py`, and what
SearchQA searches with, as in `retrieval.py`: queries/s of 1 and 16 callers, indexing, memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import agentgym_envs
import gymnasium
import numpy as np
import pools  # the files beside this one
import retrieval
from gymnasium.error import DependencyNotInstalled

TASKS, MANY = 8, 96
AGENTGYM = {"agentgym/BabyAI-v0": 540.0}
"""Steps/s of AgentGym's wrapper of the same simulator."""
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
        world = agentgym_envs.text_env(envs[0])
        self._tasks = world.tasks.train.ids[: MANY if world.step_seconds < 5e-3 else TASKS]
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
    before = pools.memory()
    with ExitStack() as stack:
        envs = [stack.enter_context(closing(agentgym_envs.make(world))) for _ in range(worlds)]
        players = [Player([env], i) for i, env in enumerate(envs)] if at_once else [Player(envs, 0)]
        with ThreadPoolExecutor(len(players)) as threads:
            list(threads.map(Player.begin, players))
            list(threads.map(lambda player: player.play(seconds), players))
        needed = pools.memory() - before
    count = sum((player.count for player in players), Counter[str]())
    spent = sum((player.spent for player in players), Counter[str]())
    rates = [sum(player.count[what] / player.spent[what] for player in players) for what in ("step", "reset")]
    calls = [1000 * spent[what] / count[what] for what in ("step", "reset")]
    return Speed(world, worlds, count["step"], count["reset"], count["fault"], *rates, *calls, needed / 2**20)


def choose(env: gymnasium.Env[str, str], info: dict[str, Any], rng: np.random.Generator) -> str:
    """A random available action, or the oracle's where they aren't listed."""
    available = info["available_actions"]
    return agentgym_envs.text_env(env).oracle() if available is None else available[rng.integers(len(available))]


def main() -> None:
    """Measure all worlds, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="time per row")
    parser.add_argument("--worlds", type=int, nargs="+", help="how many of each world; 1 8 32 if not given, or AT_ONCE")
    parser.add_argument("--only", help="the worlds with this in their name, and no retrieval")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    asked = parser.parse_args()
    chosen = [world for world in agentgym_envs.WORLDS if (asked.only or "").lower() in world.id.lower()]
    speeds = list(show_speeds(chosen, asked.worlds, asked.seconds))
    suits = list(show_suits(chosen, asked.seconds))
    costs: list[retrieval.Cost] = []
    overheads: list[pools.Overhead] = []
    if not asked.only:
        overheads = pools.overhead(4 * asked.seconds)
        show_overhead(overheads)
        costs = retrieval.compare(retrieval.BACKENDS, None, asked.seconds)
        retrieval.show(costs)
    if asked.out is not None:
        figures = {"worlds": speeds, "backends": suits, "overhead": overheads, "retrieval": costs}
        rows = {name: [asdict(row) for row in found] for name, found in figures.items()}
        asked.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def show_speeds(
    chosen: list[agentgym_envs.RegisteredWorld], counts: list[int] | None, seconds: float
) -> Iterator[Speed]:
    """How fast worlds are, printed as it is measured."""
    print(
        f"{'world':<24}{'worlds':>8}{'steps/s':>10}{'ms/step':>10}{'resets/s':>10}{'ms/reset':>10}{'MB':>8}{'faults':>8}"
    )
    for world in chosen:
        for worlds in counts or AT_ONCE.get(world.id, (1, 8, 32)):
            try:
                speed = apart(world.id, worlds, seconds)
            except DependencyNotInstalled as missing:
                print(f"{world.id:<24}  {missing}")
                break
            yield speed
            steps = f"{speed.steps_per_second:>10,.0f}{speed.ms_per_step:>10.3f}"
            resets = f"{speed.resets_per_second:>10,.0f}{speed.ms_per_reset:>10.2f}"
            before = AGENTGYM.get(world.id)
            ratio = "" if before is None else f"  {speed.steps_per_second / before:.1f} times AgentGym's {before:.0f}"
            print(
                f"{world.id:<24}{worlds:>8}{steps}{resets}{speed.megabytes:>8,.0f}{speed.faults:>8}{ratio}", flush=True
            )


def show_suits(chosen: list[agentgym_envs.RegisteredWorld], seconds: float) -> Iterator[pools.Suits]:
    """Which backends suit worlds, printed as it is measured."""
    heads = "".join(f"{f'{backend} steps/s':>16}{'MB':>7}" for backend in pools.LOCAL)
    print(f"\n{f'world, {pools.SLOTS} slots':<24}{'says ms':>9}{'takes ms':>9}{heads}  default")
    for world in chosen:
        try:
            row = pools.suits(world, seconds)
        except DependencyNotInstalled:
            continue
        yield row
        rates = "".join(f"{row.steps_per_second[b]:>16,.0f}{row.megabytes[b]:>7,.0f}" for b in pools.LOCAL)
        wrong = f"  ({row.wrong})" if row.wrong else ""
        print(f"{row.world:<24}{row.declared_ms:>9.3g}{row.measured_ms:>9.3g}{rates}  {row.default}{wrong}", flush=True)


def show_overhead(overheads: list[pools.Overhead]) -> None:
    """What the pool costs."""
    print(f"\n{'TextCraft through':<24}{'slots':>8}{'us/step':>10}{'of pool':>10}{'times bare':>12}")
    for row in overheads:
        ratio = row.us_per_step / (row.us_per_step - row.us_of_pool)
        print(f"{row.backend:<24}{row.slots:>8}{row.us_per_step:>10.1f}{row.us_of_pool:>10.1f}{ratio:>12.2f}")


def apart(world: str, worlds: int, seconds: float) -> Speed:
    """`measure` in a fresh process, so that no row inherits another's memory or caches."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, world, worlds, seconds, at_once=world in AT_ONCE).result()


if __name__ == "__main__":
    main()
