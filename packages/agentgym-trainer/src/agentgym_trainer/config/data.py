"""What runs are told that learn from data: episodes that were played before, by an expert or by anyone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agentgym_trainer.config.base import BaseConfig, at_least_one
from agentgym_trainer.curriculum.horizon import FixedHorizon


@dataclass(frozen=True)
class DataConfig:
    """Where episodes come from, and which of them are kept."""

    files: tuple[str, ...] = ()
    """Files of episodes, such as `collect` writes, or of conversations. Empty: the worlds' experts play."""
    episodes: int = 1000
    """Episodes that experts play on training tasks, where no files are named."""
    tasks: int = 0
    """Training tasks that they play, drawn once; 0: any."""
    noise: float = 0.0
    """Probability that the expert plays a random available action instead."""
    keep: Literal["success", "all"] = "success"
    """Which episodes are kept. Failed ones never are."""
    score: float | None = None
    """That of conversations whose file says none."""
    min_score: float = 0.0
    """Episodes with a lower score are left out."""

    def __post_init__(self) -> None:
        if self.episodes < 1 or self.tasks < 0 or not 0 <= self.noise <= 1 or not 0 <= self.min_score <= 1:
            raise ValueError("data needs episodes of at least 1, tasks from 0, and a noise and min_score from 0 to 1.")
        if self.score is not None and not 0 <= self.score <= 1:
            raise ValueError(f"data.score is from 0 to 1, not {self.score}.")


@dataclass(frozen=True)
class OfflineConfig(BaseConfig):
    """What the runs that learn from data have in common."""

    horizon: FixedHorizon = field(default_factory=FixedHorizon)
    data: DataConfig = field(default_factory=DataConfig)
    epochs: int = 1
    """Passes over the data."""
    batch: int = 16
    """Examples in an optimizer step, those of all processes together."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "epochs", "batch")


@dataclass(frozen=True)
class SFTConfig(OfflineConfig):
    """Supervised fine-tuning: imitation of what was said in the data."""

    packing: bool = False
    """Lay episodes one behind the other in rows of generation.max_context tokens, each attending to itself only. An
    example is then a row."""
    weighted: bool = False
    """Weigh what is learned from an episode by its score (reward-weighted likelihood, as in arXiv 2406.04151)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.packing and self.weighted:
            raise ValueError("Packed rows hold episodes of several scores: set either packing or weighted.")
