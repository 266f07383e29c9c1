"""The speed of an environment: resets and steps per second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import gymnasium

from agentgym_envs.core.registry import text_env

SLOW_STEP = 1.0
"""Seconds. A mean step above this is reported as slow: an episode of 30 turns would take over half a minute."""
_STEPS = 50
"""The most steps that are measured per task."""
_SECONDS = 10.0
"""No further task is measured after this time."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Measured durations in seconds, of calls in one environment, one after the other."""

    resets: int
    """The number of resets that were measured."""
    steps: int
    """The number of steps that were measured."""
    reset_seconds: float
    """The mean duration of a reset."""
    step_seconds: float
    """The mean duration of a step."""
    longest_step: float
    """The duration of the longest step."""

    @property
    def warning(self) -> str:
        """A sentence if steps are slow, else empty."""
        if self.step_seconds <= SLOW_STEP:
            return ""
        return (
            f"A step takes {self.step_seconds:.1f} s on average (more than {SLOW_STEP:g} s): training plays thousands "
            "of steps per update. If it waits for another process or a server, set the class attribute step_waits, so "
            "that a pool steps many environments at once; otherwise make the simulator faster."
        )


def measure_speed(
    env: gymnasium.Env[str, str], *, tasks: int = 5, clock: Callable[[], float] = time.perf_counter
) -> Speed:
    """Measure the first training tasks, each with at most 50 actions of the oracle, for about ten seconds.

    Without an oracle, each step plays the first available action, or an invalid one.

    Args:
        env: An environment from `gymnasium.make`. It is left open.
        tasks: The number of tasks.
        clock: Returns the time in seconds.

    Raises:
        EnvFault: if the simulator broke.
        ValueError: if there are no training tasks.
    """
    world = text_env(env)
    resets, steps, until = list[float](), list[float](), clock() + _SECONDS
    for task_id in islice(world.tasks.train.ids, tasks):
        started = clock()
        if started > until:
            break
        _, info = env.reset(seed=1, options={"task": task_id})
        resets.append(clock() - started)
        for _ in range(_STEPS):
            action = world.oracle() if world.has_oracle else next(iter(info["available_actions"] or ()), "")
            started = clock()
            _, _, terminated, truncated, info = env.step(action)
            steps.append(clock() - started)
            if terminated or truncated:
                break
    if not steps:
        raise ValueError("There are no training tasks to measure.")
    return Speed(len(resets), len(steps), sum(resets) / len(resets), sum(steps) / len(steps), max(steps))
