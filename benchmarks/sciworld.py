"""How fast SciWorld steps with many worlds on few JVMs, what the JVMs take, and the official wrapper beside it.

    uv run python benchmarks/sciworld.py --steps 300 --out sciworld.json

Worlds play the solutions of the first test variations in turn, from one thread; resets and solutions aren't timed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from agentgym_envs.worlds.sciworld import jvm_pool
from agentgym_envs.worlds.sciworld.env import SciWorld

TASKS = ("boil", "use-thermometer", "find-living-thing", "test-conductivity")


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured of one arrangement."""

    what: str
    worlds: int
    jvms: int
    steps: int
    steps_per_second: float
    ms_per_step: float
    ms_per_reset: float
    jvm_rss_mb: float
    """Resident memory of all JVMs together, at the end."""


def rss(pids: Iterator[int]) -> float:
    """Resident memory of processes, in MB."""
    listed = subprocess.run(
        ["ps", "-o", "rss=", "-p", ",".join(map(str, pids))], capture_output=True, text=True, check=True
    )
    return sum(map(int, listed.stdout.split())) / 1024


class Player:
    """A world that plays solutions, one task after the other."""

    def __init__(self, jvms: int, first: int) -> None:
        self.world = SciWorld(tasks=TASKS, jvms=jvms)
        self.tasks = itertools.cycle(self.world.tasks.test.ids[first % 4 :][:8])
        self.over = True
        self.spent = {"step": 0.0, "reset": 0.0}
        self.count = {"step": 0, "reset": 0}

    def play(self) -> None:
        """One step, and a reset before it where one is due."""
        began = time.perf_counter()
        if self.over:
            self.world.reset(options={"task": next(self.tasks)})
            self.spent["reset"] += time.perf_counter() - began
            self.count["reset"] += 1
        action = self.world.oracle()
        began = time.perf_counter()
        *_, self.over, _, _ = self.world.step(action)
        self.spent["step"] += time.perf_counter() - began
        self.count["step"] += 1


def ours(worlds: int, jvms: int, steps: int) -> Speed:
    """Our worlds, `steps` in all, after as many to warm up."""
    players = [Player(jvms, number) for number in range(worlds)]
    turns = itertools.cycle(players)
    for _ in range(max(steps, worlds)):
        next(turns).play()
    for player in players:
        player.spent, player.count = dict.fromkeys(player.spent, 0.0), dict.fromkeys(player.count, 0)
    for _ in range(steps):
        next(turns).play()
    spent = {what: sum(player.spent[what] for player in players) for what in ("step", "reset")}
    resets = sum(player.count["reset"] for player in players)
    memory = rss(jvm.pid for jvm in jvm_pool.jvms())
    for player in players:
        player.world.close()
    per_reset = 1000 * spent["reset"] / max(1, resets)
    return Speed(
        "SciWorld", worlds, jvms, steps, steps / spent["step"], 1000 * spent["step"] / steps, per_reset, memory
    )


def official(steps: int) -> Speed:
    """The wrapper of the package `scienceworld`, on the same solutions."""
    from scienceworld import ScienceWorldEnv

    source = SciWorld(tasks=TASKS)
    env = ScienceWorldEnv("", envStepLimit=10_000)
    spent, resets, reset_seconds, done = 0.0, 0, 0.0, 0
    for task in itertools.cycle(source.tasks.test[:8]):
        source.reset(options={"task": task.id})
        began = time.perf_counter()
        env.load(task.payload["task"], task.payload["variation"])
        env.reset()
        reset_seconds, resets, over = reset_seconds + time.perf_counter() - began, resets + 1, False
        while not over and done < 2 * steps:
            action = source.oracle()
            source.step(action)
            began = time.perf_counter()
            _, _, over, _ = env.step(action)
            spent += (time.perf_counter() - began) * (done >= steps)
            done += 1
        if done >= 2 * steps:
            break
    memory = rss(iter([env._gateway.java_process.pid]))
    env.close()
    source.close()
    per_reset = 1000 * reset_seconds / resets
    return Speed("official wrapper", 1, 1, steps, steps / spent, 1000 * spent / steps, per_reset, memory)


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="timed steps per row; as many go before them")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    asked = parser.parse_args()
    speeds: list[Speed] = []
    print(f"{'':<18}{'worlds':>8}{'JVMs':>6}{'steps/s':>10}{'ms/step':>10}{'ms/reset':>10}{'JVM MB':>9}")
    arrangements = [(1, 1), (8, 1), (32, 1), (8, 2), (32, 2)]
    for measure in (
        *(lambda w=w, j=j: ours(w, j, asked.steps) for w, j in arrangements),
        lambda: official(asked.steps),
    ):
        speed = measure()
        speeds.append(speed)
        figures = f"{speed.steps_per_second:>10.0f}{speed.ms_per_step:>10.2f}{speed.ms_per_reset:>10.1f}"
        print(f"{speed.what:<18}{speed.worlds:>8}{speed.jvms:>6}{figures}{speed.jvm_rss_mb:>9.0f}", flush=True)
    if asked.out is not None:
        asked.out.write_text(json.dumps([asdict(speed) for speed in speeds], indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
