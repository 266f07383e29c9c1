"""Speed of SciWorld with many environments on few JVMs, memory of the JVMs, and the official wrapper for comparison.

    uv run python benchmarks/sciworld.py --steps 300 --out sciworld.json

Environments play the solutions of the first test variations in turn, in one thread. Solutions aren't timed.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import psutil
from agentgym_envs import Task
from agentgym_envs.worlds.sciworld import jvm_pool
from agentgym_envs.worlds.sciworld.env import SciWorld
from harness import CallTimer, arguments, resident_mb, show, write_json

TASKS = ("boil", "use-thermometer", "find-living-thing", "test-conductivity")
SIZES = ((1, 1), (8, 1), (32, 1), (8, 2), (32, 2))
"""Numbers of environments and of JVMs."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Measurements of one setup."""

    what: str
    worlds: int
    jvms: int
    steps: int
    steps_per_second: float
    ms_per_step: float
    ms_per_reset: float
    jvm_rss_mb: float
    """Resident memory of all JVMs together, at the end."""


class Driver:
    """Plays the solutions of tasks in an environment."""

    def __init__(self, jvms: int, first: int) -> None:
        self.env = SciWorld(tasks=TASKS, jvms=jvms)
        self._tasks = itertools.cycle(self.env.tasks.test.ids[first % 4 :][:8])
        self._over = True

    def take_turn(self, timer: CallTimer) -> None:
        """Play one step, after a reset if the episode is over."""
        if self._over:
            timer("reset", self.env.reset, options={"task": next(self._tasks)})
        _, _, self._over, _, _ = timer("step", self.env.step, self.env.oracle())


def measure(envs: int, jvms: int, steps: int) -> Speed:
    """Measure our environment: `steps` in total, after as many to warm up."""
    drivers = [Driver(jvms, number) for number in range(envs)]
    turns, timer = itertools.cycle(drivers), CallTimer()
    for _ in range(max(steps, envs)):
        next(turns).take_turn(CallTimer())
    for _ in range(steps):
        next(turns).take_turn(timer)
    jvm_pids = [jvm.pid for jvm in jvm_pool.jvms()]
    speed = _speed("SciWorld", envs, jvms, timer, jvm_pids)
    for driver in drivers:
        driver.env.close()
    return speed


def measure_official(steps: int) -> Speed:
    """Measure the wrapper of the package `scienceworld` on the same solutions."""
    from scienceworld import ScienceWorldEnv

    source = SciWorld(tasks=TASKS)
    env: Any = ScienceWorldEnv("", envStepLimit=10_000)
    warm_up, timer = CallTimer(), CallTimer()

    def load(task: Task) -> None:
        env.load(task.payload["task"], task.payload["variation"])
        env.reset()

    for task in itertools.cycle(source.tasks.test[:8]):
        source.reset(options={"task": task.id})
        timer("reset", load, task)
        over = False
        while not over and timer.count["step"] < steps:
            action = source.oracle()
            source.step(action)
            phase = warm_up if warm_up.count["step"] < steps else timer
            _, _, over, _ = phase("step", env.step, action)
        if timer.count["step"] == steps:
            break
    speed = _speed("official wrapper", 1, 1, timer, [env._gateway.java_process.pid])
    env.close()
    source.close()
    return speed


def _speed(name: str, envs: int, jvms: int, timer: CallTimer, jvm_pids: list[int]) -> Speed:
    steps, seconds = timer.count["step"], timer.seconds["step"]
    ms_per_reset = 1000 * timer.seconds["reset"] / max(1, timer.count["reset"])
    memory = resident_mb(map(psutil.Process, jvm_pids))
    return Speed(name, envs, jvms, steps, steps / seconds, 1000 * seconds / steps, ms_per_reset, memory)


def table(found: list[Speed]) -> list[dict[str, str]]:
    """Return a row for each setup."""
    return [
        {
            "": row.what,
            "environments": str(row.worlds),
            "JVMs": str(row.jvms),
            "steps/s": f"{row.steps_per_second:.0f}",
            "ms/step": f"{row.ms_per_step:.2f}",
            "ms/reset": f"{row.ms_per_reset:.1f}",
            "JVM MB": f"{row.jvm_rss_mb:.0f}",
        }
        for row in found
    ]


def main() -> None:
    """Measure all setups."""
    parser = arguments(__doc__, "out")
    parser.add_argument("--steps", type=int, default=300, help="timed steps of each setup, after as many to warm up")
    settings = parser.parse_args()
    found: list[Speed] = []
    for envs, jvms in SIZES:
        found.append(measure(envs, jvms, settings.steps))
        print(f"{envs} environments, {jvms} JVMs: {found[-1].ms_per_step:.1f} ms/step", flush=True)
    found.append(measure_official(settings.steps))
    show("SciWorld", table(found))
    write_json(settings.out, found)


if __name__ == "__main__":
    main()
