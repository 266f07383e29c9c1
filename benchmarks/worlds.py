"""Speed of the registered environments: steps/s, resets/s and memory, alone and with many of a kind; pool backends.

    uv run python benchmarks/worlds.py --seconds 5 --worlds 1 8 32 --out worlds.json

The environments of a process take turns in one thread. Those of CONCURRENT, which compute in other processes, have a
thread each: then rates are sums, and the milliseconds are those of a call among the others. Actions are drawn from
`info["available_actions"]`, or are the oracle's where an environment doesn't list them; choosing isn't timed. Tasks are
the first of the training split: FEW_TASKS, or MANY_TASKS for environments that respond within milliseconds. Every row
has its own process. Memory is that of the process and its descendants (a JVM, a browser), less that of Python alone.

Then `pools.py` compares the backends of `EnvPool` for each environment, and measures the overhead of each backend. The
retrieval backends of SearchQA have their own script, `retrieval.py`.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import agentgym_envs
import gymnasium
import numpy as np
import pools
from gymnasium.error import DependencyNotInstalled
from harness import CallTimer, arguments, isolated, process_tree, resident_mb, show, write_json

FEW_TASKS, MANY_TASKS = 8, 96
AGENTGYM = {"agentgym/BabyAI-v0": 540.0}
"""Steps/s of AgentGym's wrapper of the same simulator."""
CONCURRENT = {"agentgym/WebArena-v0": (1, 4, 16, 64)}
"""Environments that are stepped concurrently, and their numbers."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Measurements of a number of environments of one kind."""

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


class Driver:
    """Plays episodes in environments that take turns."""

    def __init__(self, envs: list[gymnasium.Env[str, str]], seed: int) -> None:
        self.envs = envs
        self.timer = CallTimer()
        self.faults = 0
        self._rng = np.random.default_rng(seed)
        env = agentgym_envs.text_env(envs[0])
        self._tasks = env.tasks.train.ids[: MANY_TASKS if env.step_seconds < 5e-3 else FEW_TASKS]
        self._infos: list[dict[str, Any] | None] = [None] * len(envs)

    def warm_up(self) -> None:
        """Reset each environment, which starts simulators and reads tables."""
        for i, env in enumerate(self.envs):
            env.reset(options={"task": self._tasks[i % len(self._tasks)]})

    def play(self, seconds: float) -> None:
        """Play for this time, choosing actions excluded, and until each environment was reset and stepped."""
        calls = self.timer
        while sum(calls.seconds.values()) < seconds or min(calls.count["step"], calls.count["reset"]) < len(self.envs):
            for i, env in enumerate(self.envs):
                try:
                    self._take_turn(i, env)
                except agentgym_envs.EnvFault:
                    self.faults += 1
                    self._infos[i] = None

    def _take_turn(self, i: int, env: gymnasium.Env[str, str]) -> None:
        info = self._infos[i]
        if info is None:
            task = self._tasks[int(self._rng.integers(len(self._tasks)))]
            _, info = self.timer("reset", env.reset, options={"task": task})
        action = choose(env, info, self._rng)
        _, _, terminated, truncated, info = self.timer("step", env.step, action)
        self._infos[i] = None if terminated or truncated else info


def choose(env: gymnasium.Env[str, str], info: dict[str, Any], rng: np.random.Generator) -> str:
    """Return a random available action, or the oracle's if the environment doesn't list actions."""
    available = info["available_actions"]
    return agentgym_envs.text_env(env).oracle() if available is None else available[rng.integers(len(available))]


def measure(world: str, worlds: int, seconds: float) -> Speed:
    """Play in some environments of one kind for about `seconds`."""
    before = resident_mb(process_tree())
    with ExitStack() as stack:
        envs = [stack.enter_context(closing(agentgym_envs.make(world))) for _ in range(worlds)]
        drivers = [Driver([env], i) for i, env in enumerate(envs)] if world in CONCURRENT else [Driver(envs, 0)]
        with ThreadPoolExecutor(len(drivers)) as threads:
            list(threads.map(Driver.warm_up, drivers))
            list(threads.map(Driver.play, drivers, [seconds] * len(drivers)))
        megabytes = resident_mb(process_tree()) - before
    timers = [driver.timer for driver in drivers]
    count = sum((timer.count for timer in timers), Counter[str]())
    rate = {name: sum(timer.count[name] / timer.seconds[name] for timer in timers) for name in count}
    ms = {name: 1000 * sum(timer.seconds[name] for timer in timers) / count[name] for name in count}
    return Speed(
        world, worlds, count["step"], count["reset"], sum(driver.faults for driver in drivers),
        rate["step"], rate["reset"], ms["step"], ms["reset"], megabytes,
    )  # fmt: skip


def measure_all(chosen: list[agentgym_envs.RegisteredWorld], counts: list[int] | None, seconds: float) -> list[Speed]:
    """Measure environments, each number of them in its own process; skip those whose packages are missing."""
    found: list[Speed] = []
    for world in chosen:
        for number in counts or CONCURRENT.get(world.id, (1, 8, 32)):
            try:
                found.append(isolated(measure, world.id, number, seconds))
            except DependencyNotInstalled as missing:
                print(f"{world.id}: {missing}")
                break
            print(f"{world.id} x {number}: {found[-1].steps_per_second:,.0f} steps/s", flush=True)
    return found


def speed_table(found: list[Speed]) -> list[dict[str, str]]:
    """Return a row for each environment and number of them."""
    return [
        {
            "environment": row.world,
            "number": str(row.worlds),
            "steps/s": f"{row.steps_per_second:,.0f}",
            "ms/step": f"{row.ms_per_step:.3f}",
            "resets/s": f"{row.resets_per_second:,.0f}",
            "ms/reset": f"{row.ms_per_reset:.2f}",
            "MB": f"{row.megabytes:,.0f}",
            "faults": str(row.faults),
            "x AgentGym": f"{row.steps_per_second / AGENTGYM[row.world]:.1f}" if row.world in AGENTGYM else "–",
        }
        for row in found
    ]


def main() -> None:
    """Measure the environments and the backends."""
    parser = arguments(__doc__, "out", "seconds", seconds=5.0)
    parser.add_argument("--worlds", type=int, nargs="+", help="numbers of environments; else 1 8 32, or CONCURRENT's")
    parser.add_argument("--only", default="", help="only environments with this in their name, without pool overhead")
    settings = parser.parse_args()
    chosen = [world for world in agentgym_envs.WORLDS if settings.only.lower() in world.id.lower()]
    speeds = measure_all(chosen, settings.worlds, settings.seconds)
    measured = {speed.world for speed in speeds}
    backends = [pools.compare_backends(world, settings.seconds) for world in chosen if world.id in measured]
    overhead = [] if settings.only else pools.measure_overhead(4 * settings.seconds)
    if speeds:
        show("Environments", speed_table(speeds))
        show(f"EnvPool with {pools.SLOTS} slots", pools.backend_table(backends))
    if overhead:
        show("A step of TextCraft through EnvPool", pools.overhead_table(overhead))
    write_json(settings.out, {"worlds": speeds, "backends": backends, "overhead": overhead})


if __name__ == "__main__":
    main()
