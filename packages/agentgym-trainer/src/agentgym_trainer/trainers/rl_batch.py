"""What one step of reinforcement learning plays and trains on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentgym_envs import Episode

from agentgym_trainer.algorithms import TokenBatch
from agentgym_trainer.rollout.groups import EpisodeGroup, GroupOutcome
from agentgym_trainer.tokens.batch import Batch


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The groups of one step."""

    own: list[EpisodeGroup]
    """Groups that this process played."""
    groups: list[GroupOutcome]
    """Outcomes of the groups of all processes: those drawn first, then those that replaced others."""
    usage: dict[str, int]
    """Tokens that the engines prefilled, reused from their caches and generated, over all processes."""
    sampler: Any
    """State of the task sampler after these groups."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """What a step trains on."""

    episodes: list[Episode]
    keys: list[tuple[int, int]]
    """Group number and sample of each episode: their order doesn't depend on the number of processes."""
    in_loss: list[bool]
    """Whether each episode is in the loss; the others count in baselines and statistics only."""
    batch: Batch
    """Token ids of all episodes, packed without padding."""
    tokens: TokenBatch
    """Log-probabilities, rewards and masks of the completion tokens."""
