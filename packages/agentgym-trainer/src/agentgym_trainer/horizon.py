"""How many turns an episode may have at step t. ScalingInter-RL (arXiv 2509.08755, section 3.3) is `StepHorizon`.

Schedules are pure functions of the step, so resuming at any step gives the stage that not stopping would have given.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FixedHorizon:
    """The same number of turns throughout."""

    turns: int = 20

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise ValueError(f"A horizon is at least 1 turn, not {self.turns}.")

    def at(self, step: int) -> int:
        """The most turns of an episode at `step`, counted from 0."""
        return self.turns

    @property
    def longest(self) -> int:
        """The horizon of the last stage, which evaluation uses."""
        return self.turns


@dataclass(frozen=True)
class StepHorizon:
    """The next stage every `every` steps; the last one lasts."""

    stages: tuple[int, ...] = (10, 20, 30)
    """Turns of each stage."""
    every: int = 100
    """Steps in a stage."""

    def __post_init__(self) -> None:
        if not self.stages or min(self.stages) < 1 or list(self.stages) != sorted(self.stages):
            raise ValueError(f"Stages are turns, at least 1 and never falling, such as 10 20 30; not {self.stages}.")
        if self.every < 1:
            raise ValueError(f"A stage lasts at least 1 step, not {self.every}.")

    def at(self, step: int) -> int:
        """The most turns of an episode at `step`, counted from 0."""
        return self.stages[min(step // self.every, len(self.stages) - 1)]

    @property
    def longest(self) -> int:
        """The horizon of the last stage, which evaluation uses."""
        return self.stages[-1]


Horizon = FixedHorizon | StepHorizon
