"""Configuration of AgentEvol runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from agentgym_trainer.config.base import at_least_one
from agentgym_trainer.config.data import SFTConfig


@dataclass(frozen=True)
class Exploration:
    """The exploration phase of an iteration, and the filter on its episodes."""

    tasks: int = 0
    """Training tasks per iteration over all environments, in proportion to their weights and redrawn in each iteration;
    0: all tasks."""
    samples: int = 1
    """Episodes per task."""
    temperature: float | None = None
    """Sampling temperature; default: generation.temperature. 0 is greedy."""
    known: bool = False
    """Also play the tasks of the base data. Otherwise these are played only if there are no others."""
    keep: Literal["success", "all"] = "success"
    """Which episodes to train on. Failed episodes and those that ended at the token budget are never kept."""
    min_score: float = 0.0
    """Minimum score of kept episodes."""
    thresholds: tuple[str, ...] = ()
    """ENV=SCORE, such as agentgym/SciWorld-v0=0.99: keep episodes of that environment with a score above this,
    regardless of keep and min_score."""
    most: int = 1
    """Maximum number of episodes kept per task and iteration, those with the highest scores; 0: all."""

    def __post_init__(self) -> None:
        at_least_one(self, "samples")
        if self.tasks < 0 or not 0 <= self.min_score <= 1:
            raise ValueError("exploration.tasks must be at least 0, and exploration.min_score from 0 to 1.")
        if self.most < 0 or not 0 <= (self.temperature or 0.0) < math.inf:
            raise ValueError("exploration.most must be at least 0, and exploration.temperature finite and at least 0.")
        _ = self.threshold_by_env

    @property
    def threshold_by_env(self) -> dict[str, float]:
        """Thresholds by environment, as it is named.

        Raises:
            ValueError: A threshold isn't ENV=SCORE.
        """
        found = dict[str, float]()
        for threshold in self.thresholds:
            env, _, score = threshold.rpartition("=")
            try:
                least = float(score)
            except ValueError:
                least = math.nan
            if not env or not 0 <= least < 1:
                raise ValueError(f"A threshold is ENV=SCORE with a score from 0 to below 1, not {threshold}.")
            found[env] = least
        return found


@dataclass(frozen=True)
class AgentEvolConfig(SFTConfig):
    """AgentEvol: alternate between exploration and training (Xi et al. 2024, arXiv 2406.04151).

    Behavioral cloning of the base data gives the first model. In each iteration the latest model plays, its kept
    episodes are merged with the base data, and the run's initial model is trained on both.
    """

    iterations: int = 4
    """Iterations of exploration and training, after behavioral cloning."""
    exploration: Exploration = field(default_factory=Exploration)
    base: float = 1.0
    """Share of the base data to merge with the kept episodes, redrawn in each iteration."""
    memory: Literal["last", "all"] = "all"
    """Which kept episodes to train on: those of the last exploration, or of all so far."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "iterations")
        if not 0 <= self.base <= 1:
            raise ValueError(f"base must be a share from 0 to 1, not {self.base}.")
        if self.evaluation.load_best_model_at_end:
            raise ValueError(
                "evaluation.load_best_model_at_end doesn't apply to AgentEvol, which explores with the last model of "
                "an iteration. The models of all iterations are kept in the run folder."
            )
