"""How far a run has come: what its checkpoints remember besides weights. Knows neither learners nor files."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from agentgym_trainer.curriculum.horizon import Stage


@dataclass(frozen=True, slots=True)
class Reached:
    """Where a sitting of a run has ended."""

    step: int
    """Updates done."""
    of: int
    """Updates that the run takes."""

    @property
    def done(self) -> bool:
        """Whether that was the end of the run."""
        return self.step == self.of


@dataclass(frozen=True, slots=True)
class Best:
    """The best checkpoint so far."""

    step: int
    success: float
    """On the tasks of evaluations, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class TrainingState:
    """How far a run has come. All else (tasks, seeds) is a function of this and the configuration."""

    stage: Stage
    """Where the horizon's schedule is."""
    step: int = 0
    """Updates done."""
    env_steps: int = 0
    """Turns played in training."""
    sampler: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the task samplers remember; JSON values."""
    best: Best | None = None
    learned: dict[str, Any] | None = None
    """Figures of the last update, when it was taken and what is held out not yet played; JSON values."""
    ahead: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """For each process, what it had under way when it collected the last step (`Ahead.under_way`); empty where nothing
    is sampled ahead."""

    def evaluated(self, success: float | None) -> TrainingState:
        """The same after an evaluation at this step: this is the best if none before had as high a success.

        `success` is None where every episode of it failed. What was there before the first update is no candidate.
        """
        if not self.step or success is None or (self.best and self.best.success >= success):
            return self
        return replace(self, best=Best(self.step, success))

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> TrainingState:
        """What `to_json` wrote."""
        known: dict[str, Any] = {**record, "stage": Stage(**record["stage"])}
        if known["best"]:
            known["best"] = Best(**known["best"])
        return cls(**known)
