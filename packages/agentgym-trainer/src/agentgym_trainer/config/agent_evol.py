"""What a run of AgentEvol is told."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from agentgym_trainer.config.base import at_least_one
from agentgym_trainer.config.data import SFTConfig


@dataclass(frozen=True)
class Exploration:
    """What the agent plays in an iteration, and what of it is learned from."""

    tasks: int = 0
    """Training tasks of all worlds together, in proportion to their weights and drawn anew each time; 0: all there
    are."""
    samples: int = 1
    """Episodes of each task."""
    temperature: float | None = None
    """That of the replies, where it isn't generation.temperature; 0 is greedy."""
    known: bool = False
    """Play the tasks of the base data, too. Otherwise those are played only where there are no others."""
    keep: Literal["success", "all"] = "success"
    """Which of them are learned from. Never those that failed or were cut at the token budget."""
    min_score: float = 0.0
    """Episodes with a lower score are left out."""
    thresholds: tuple[str, ...] = ()
    """ENV=SCORE, such as agentgym/SciWorld-v0=0.99: episodes of that environment are kept if they scored more than
    this, whatever keep and min_score say."""
    most: int = 1
    """Most episodes of a task that are kept of an iteration, those with the highest scores; 0: all."""

    def __post_init__(self) -> None:
        at_least_one(self, "samples")
        if self.tasks < 0 or not 0 <= self.min_score <= 1:
            raise ValueError("exploration needs tasks from 0, and a min_score from 0 to 1.")
        if self.most < 0 or not 0 <= (self.temperature or 0.0) < math.inf:
            raise ValueError("exploration needs most from 0, and a finite temperature from 0.")
        _ = self.threshold_by_env

    @property
    def threshold_by_env(self) -> dict[str, float]:
        """The thresholds by the ids of their environments.

        Raises:
            ValueError: when one isn't ENV=SCORE.
        """
        found = dict[str, float]()
        for threshold in self.thresholds:
            env, _, score = threshold.rpartition("=")
            try:
                found[env] = float(score)
            except ValueError:
                found[env] = math.nan
            if not env or not 0 <= found[env] < 1:
                raise ValueError(f"A threshold is ENV=SCORE with a score from 0 to below 1, not {threshold}.")
        return found


@dataclass(frozen=True)
class AgentEvolConfig(SFTConfig):
    """Evolution by exploring and learning (Xi et al. 2024, arXiv 2406.04151).

    Behavioural cloning of the base data makes the first model. In each iteration the last model plays, what went well
    is merged with the base data, and the model that the run began with is trained on both.
    """

    iterations: int = 4
    """How often the agent explores and learns, after behavioural cloning."""
    exploration: Exploration = field(default_factory=Exploration)
    base: float = 1.0
    """Share of the base data that the kept episodes are merged with, drawn anew in each iteration."""
    memory: Literal["last", "all"] = "all"
    """Which kept episodes are learned from: those of the last exploration, or those of all so far."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "iterations")
        if not 0 <= self.base <= 1:
            raise ValueError(f"base is a share from 0 to 1, not {self.base}.")
