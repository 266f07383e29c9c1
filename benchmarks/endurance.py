"""Whether worlds that are played for long leak: memory and open files over thousands of episodes.

    uv run python benchmarks/endurance.py --only textcraft --out endurance.json

Episodes are played in SLOTS slots of an `EnvPool` with the world's default backend, at most so many turns each: 10,000
episodes of worlds that answer within milliseconds, 500 short ones of the others. Actions are drawn from those that the
world lists, or are the oracle's. Measured are this process and all that it started (a JVM, a browser), 100 times; after
WARM_UP of the episodes, when caches are full, the median slope between any two samples must stay below a bound. Every
world is played in a process of its own. The exit code is 1 when one leaks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import agentgym_envs
import numpy as np
import psutil
from agentgym_envs.pool import EnvPool, Result

SLOTS = 8
SAMPLES = 100
WARM_UP = 0.3


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a world is played, and how much it may grow."""

    episodes: int
    turns: int
    """At most, of an episode."""
    tasks: int
    """How many are played, over and over."""
    megabytes: float
    """Bound on growth per 1,000 episodes."""
    files: float
    """Bound on the growth of open files per 1,000 episodes."""


CHEAP = Plan(10_000, 20, 96, 1.0, 1.0)
DEAR = Plan(500, 4, 16, 40.0, 4.0)
"""A JVM and a browser take and give back tens of megabytes at a time."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was held after so many episodes."""

    episodes: int
    megabytes: float
    files: int
    processes: int


@dataclass(frozen=True, slots=True)
class Endured:
    """How a world endured."""

    world: str
    plan: Plan
    episodes: int
    steps: int
    faults: int
    seconds: float
    samples: list[Sample]
    megabytes_per_1000: float
    files_per_1000: float

    @property
    def flat(self) -> bool:
        """Whether both slopes are below their bounds."""
        return self.megabytes_per_1000 < self.plan.megabytes and self.files_per_1000 < self.plan.files


class Player:
    """Plays episodes in the slots of a pool, one after the other."""

    def __init__(self, pool: EnvPool, plan: Plan, tasks: Sequence[str]) -> None:
        self._pool = pool
        self._plan = plan
        self._tasks = itertools.cycle(tasks)
        self._turns = [0] * len(pool)
        self._rng = np.random.default_rng(0)
        self.begun = self.ended = self.steps = self.faults = 0

    def begin(self, slot: int) -> None:
        """Begin the next episode, unless that was the last."""
        self._turns[slot] = 0
        if self.begun < self._plan.episodes:
            self.begun += 1
            self._pool.reset(slot, next(self._tasks))

    def go_on(self, result: Result) -> None:
        """Answer a result with the next call of its slot."""
        slot = result.slot
        if isinstance(result.error, agentgym_envs.EnvFault):
            self.faults += 1
        elif result.error is not None:
            raise result.error
        if result.error is not None or result.over or self._turns[slot] == self._plan.turns:
            self.ended += 1
            self.begin(slot)
        elif isinstance(result.value, str):
            self._play(slot, result.value)
        elif (listed := result.info["available_actions"]) is None:
            self._pool.ask(slot, "oracle")
        else:
            self._play(slot, listed[self._rng.integers(len(listed))])

    def _play(self, slot: int, action: str) -> None:
        self._turns[slot] += 1
        self.steps += 1
        self._pool.send(slot, action)


def endure(world: str, plan: Plan) -> Endured:
    """Play a world as planned."""
    with closing(agentgym_envs.make(world)) as env:
        tasks = agentgym_envs.text_env(env).tasks.train.ids[: plan.tasks]
    samples: list[Sample] = []
    began = time.perf_counter()
    with EnvPool(world, SLOTS) as pool:
        player = Player(pool, plan, tasks)
        for slot in range(SLOTS):
            player.begin(slot)
        while player.ended < plan.episodes:
            for result in pool.recv():
                player.go_on(result)
            if player.ended * SAMPLES >= plan.episodes * (len(samples) + 1):
                samples.append(sample(player.ended))
    seconds = time.perf_counter() - began
    slopes = (slope(samples, [one.megabytes for one in samples]), slope(samples, [one.files for one in samples]))
    return Endured(world, plan, player.ended, player.steps, player.faults, seconds, samples, *slopes)


def sample(episodes: int) -> Sample:
    """What this process and its descendants hold now."""
    this, held, files, processes = psutil.Process(), 0, 0, 0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it ended meanwhile
            held += process.memory_info().rss
            files += process.num_fds()
            processes += 1
    return Sample(episodes, held / 2**20, files, processes)


def slope(samples: Sequence[Sample], values: Sequence[float]) -> float:
    """Growth per 1,000 episodes after the warm-up: the median over all pairs of samples (Theil and Sen)."""
    later = [(one.episodes, value) for one, value in zip(samples, values, strict=True)]
    later = later[int(WARM_UP * len(later)) :]
    pairs = itertools.combinations(later, 2)
    return 1000 * float(np.median([(b - a) / (m - n) for (n, a), (m, b) in pairs if m > n]))


def main() -> int:
    """Play all worlds, print a table, write JSON; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="the worlds with this in their name")
    parser.add_argument("--episodes", type=int, help="how many, instead of 10,000 or 500")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    asked = parser.parse_args()
    print(
        f"{'world':<24}{'episodes':>9}{'steps':>9}{'faults':>8}{'s':>7}{'MB':>14}{'MB/1000':>9}{'files':>12}{'/1000':>7}"
    )
    rows: list[Endured] = []
    for world in agentgym_envs.WORLDS:
        if asked.only.lower() not in world.id.lower():
            continue
        with closing(agentgym_envs.make(world.id)) as env:
            plan = CHEAP if agentgym_envs.text_env(env).step_seconds < 5e-3 else DEAR
        if asked.episodes is not None:
            plan = Plan(asked.episodes, plan.turns, plan.tasks, plan.megabytes, plan.files)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            row = process.submit(endure, world.id, plan).result()
        rows.append(row)
        first, last = row.samples[int(WARM_UP * len(row.samples))], row.samples[-1]
        memory = f"{f'{first.megabytes:,.0f} to {last.megabytes:,.0f}':>14}{row.megabytes_per_1000:>9.2f}"
        files = f"{f'{first.files} to {last.files}':>12}{row.files_per_1000:>7.2f}"
        counts = f"{row.episodes:>9,}{row.steps:>9,}{row.faults:>8}{row.seconds:>7,.0f}"
        print(f"{row.world:<24}{counts}{memory}{files}  {'flat' if row.flat else 'GROWS'}", flush=True)
    if asked.out is not None:
        asked.out.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")
    return 0 if all(row.flat for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
