"""Tests of the measurement of an environment's speed, with a clock of their own."""

from __future__ import annotations

from typing import Any

import pytest
from agentgym_envs import TextEnv
from agentgym_envs.checks.speed import SLOW_STEP, measure_speed
from door_world import Door, registered_env

pytestmark = pytest.mark.quick


class Clock:
    """A clock that goes only while an environment runs."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def timed(reset: float, *steps: float) -> tuple[type[TextEnv], Clock]:
    """Return a Door whose calls take the given durations, and the clock that shows them."""
    clock, durations = Clock(), list(steps)

    class Timed(Door):
        def reset(self, **arguments: Any) -> Any:
            clock.now += reset
            return super().reset(**arguments)

        def step(self, action: str) -> Any:
            clock.now += durations.pop(0) if len(durations) > 1 else durations[0]
            return super().step(action)

    return Timed, clock


def test_resets_and_steps_are_measured() -> None:
    world, clock = timed(0.5, 0.1, 0.1, 0.4)
    with registered_env(world) as env:
        speed = measure_speed(env, tasks=2, clock=clock)  # no knock, then one: three actions
    assert (speed.resets, speed.steps) == (2, 3)
    assert speed.reset_seconds == pytest.approx(0.5)
    assert speed.step_seconds == pytest.approx(0.2)
    assert speed.longest_step == pytest.approx(0.4)
    assert speed.warning == ""


def test_slow_steps_are_a_warning() -> None:
    world, clock = timed(0.1, SLOW_STEP + 0.5)
    with registered_env(world) as env:
        assert "A step takes 1.5 s on average (more than 1 s)" in measure_speed(env, tasks=1, clock=clock).warning


def test_no_further_task_is_begun_when_time_is_up() -> None:
    world, clock = timed(6.0, 6.0)
    with registered_env(world) as env:
        assert measure_speed(env, tasks=5, clock=clock).resets == 1


def test_an_environment_without_expert_is_measured_with_available_actions() -> None:
    played = list[str]()

    class NoExpert(Door):
        has_oracle = False

        def _available_actions(self) -> list[str]:
            return ["open", "knock"]

        def step(self, action: str) -> Any:
            played.append(action)
            return super().step(action)

        def oracle(self) -> str:
            raise AssertionError

    with registered_env(NoExpert) as env:
        assert measure_speed(env, tasks=2).steps == 2
    assert played == ["open", "open"]
