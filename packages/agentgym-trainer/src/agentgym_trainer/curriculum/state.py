"""The training state that checkpoints hold besides weights. Independent of learners and files."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from agentgym_trainer.curriculum.horizon import Stage


@dataclass(frozen=True, slots=True)
class Best:
    """The best checkpoint so far."""

    step: int
    success: float
    """Mean success on the evaluation tasks, from 0 to 1, where a failed episode is no success."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The progress of a run when its process ended."""

    step: int
    """Number of updates done."""
    of: int
    """Number of updates of the whole run."""
    best: Best | None = None
    """The best checkpoint, if the final model is to be that of the best one."""

    @property
    def done(self) -> bool:
        """Whether the run is complete."""
        return self.step == self.of

    @property
    def model_step(self) -> int:
        """Number of updates of the final model."""
        return self.best.step if self.best else self.step


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The progress of a run. Everything else (tasks, seeds) is a function of this and the configuration."""

    stage: Stage
    """Position in the horizon schedule."""
    step: int = 0
    """Number of updates done."""
    env_steps: int = 0
    """Number of turns played in training."""
    sampler: dict[str, Any] = field(default_factory=dict[str, Any])
    """State of the task samplers; JSON values."""
    best: Best | None = None
    learned: dict[str, Any] | None = None
    """Metrics of the last update while its evaluation on held-out tasks is pending; JSON values."""
    in_flight: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """For each process, the rollouts in progress when it collected the last step (`AsyncCollector.in_flight`); empty
    without asynchronous rollouts."""

    def evaluated(self, success: float | None) -> TrainingState:
        """Return the state after an evaluation at this step, with a new `best` if no earlier one had as high a success.

        `success` is None if there was no evaluation. The model before the first update is never the best.
        """
        if not self.step or success is None or (self.best and self.best.success >= success):
            return self
        return replace(self, best=Best(self.step, success))

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> TrainingState:
        """Restore the state from what `to_json` returned."""
        known: dict[str, Any] = {**record, "stage": Stage(**record["stage"])}
        if known["best"]:
            known["best"] = Best(**known["best"])
        return cls(**known)
