"""Horizon schedules that are controls in the study: a falling horizon, and one drawn anew for each update."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from agentgym_trainer.curriculum.horizon import Stage, StepOutcome


@dataclass(frozen=True)
class ReverseHorizon:
    """The stages of `StepHorizon` from the longest to the shortest."""

    stages: tuple[int, ...] = (24, 12, 6)
    """Maximum number of turns per episode in each stage."""
    every: int = 20
    """Steps per stage."""

    @property
    def longest(self) -> int:
        """The largest number of turns of any stage, which evaluation uses."""
        return max(self.stages)

    def begin(self) -> Stage:
        """Return the stage that a run begins in."""
        return Stage(self.stages[0])

    def after(self, stage: Stage, step: int, seen: StepOutcome) -> Stage:
        """Return the stage after `step` updates. It depends on the step only."""
        number = min(step // self.every, len(self.stages) - 1)
        return Stage(self.stages[number], number, number * self.every, "steps" if number else "begin")


@dataclass(frozen=True)
class RandomHorizon:
    """Each update has one of several horizons, drawn with equal probability."""

    stages: tuple[int, ...] = (6, 12, 24)
    """Maximum numbers of turns per episode to draw from."""
    seed: int = 0
    """Seed of the draws."""

    @property
    def longest(self) -> int:
        """The largest number of turns that may be drawn, which evaluation uses."""
        return max(self.stages)

    def begin(self) -> Stage:
        """Return the stage that a run begins in."""
        return Stage(self._turns(0))

    def after(self, stage: Stage, step: int, seen: StepOutcome) -> Stage:
        """Return the stage of the next update, which is a new one each time."""
        return Stage(self._turns(step), step, step, "steps")

    def _turns(self, step: int) -> int:
        return self.stages[int(np.random.default_rng([self.seed, step]).integers(len(self.stages)))]
