"""Reward shaping: rewards for training that differ from the environment's own.

Shaped rewards are used in training only: the reported score and success of an episode are the environment's, and so are
the rewards in the files of a run. Failed episodes are not shaped, since they never train.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from agentgym_envs import Episode

_LARGEST = 3.4028234e38  # of float32, the dtype of rewards in training


class RewardShaping(Protocol):
    """A function from an episode to its rewards for training, or a frozen dataclass with `__call__` and settings.

    `REWARDS` has those of this package, and those of other packages are named MODULE:NAME.
    """

    def __call__(self, episode: Episode, /) -> Sequence[float]:
        """Return one reward for each turn of an episode, including plans and reflections, and the turns of an expert
        before the policy's (`turn.reply.expert`), whose rewards aren't trained on.

        It must depend only on the episode (`turns` with `reward`, `action`, `valid` and `kind`, `stop`, `score`,
        `success`), so that a resumed run trains on the same rewards. The environment's rewards sum to the score, which
        is from 0 to 1; penalties and bonuses are in the same unit.
        """
        ...


@dataclass(frozen=True)
class EnvironmentReward:
    """The environment's own rewards, without shaping."""

    def __call__(self, episode: Episode, /) -> Sequence[float]:
        """Return the reward of each turn."""
        return [turn.reward for turn in episode.turns]


@dataclass(frozen=True)
class PerTurn:
    """The environment's rewards, with penalties and a bonus for turns that are the policy's actions. Plans, reflections
    and summaries keep their rewards.
    """

    turn_penalty: float = 0.0
    """Subtracted for each action, so that shorter successes are worth more."""
    invalid_penalty: float = 0.0
    """Subtracted for each action that the environment could not parse or execute. GiGPO's authors use 0.1 (arXiv
    2505.10978)."""
    format_bonus: float = 0.0
    """Total bonus of an episode whose replies can all be parsed: each of its n actions adds 1 / n of it if its reply
    can be parsed, so that longer episodes don't earn more."""

    def __post_init__(self) -> None:
        values = (self.turn_penalty, self.invalid_penalty, self.format_bonus)
        if not all(0 <= value < math.inf for value in values):
            raise ValueError(
                "reward needs turn_penalty, invalid_penalty and format_bonus that are finite and at least 0, "
                f"not {', '.join(f'{value:g}' for value in values)}."
            )

    def __call__(self, episode: Episode, /) -> Sequence[float]:
        """Return the reward of each turn."""
        bonus = self.format_bonus / max(1, episode.acts)
        own = [turn.kind == "act" and not turn.reply.expert for turn in episode.turns]
        return [
            turn.reward
            - is_own * self.turn_penalty
            - (is_own and not turn.valid) * self.invalid_penalty
            + (is_own and turn.action is not None) * bonus
            for turn, is_own in zip(episode.turns, own, strict=True)
        ]


REWARDS: dict[str, RewardShaping] = {"environment": EnvironmentReward(), "per-turn": PerTurn()}
"""Reward shaping by command-line name."""


def shaped_rewards(shaping: RewardShaping, episode: Episode) -> tuple[float, ...]:
    """Return the rewards that an episode is trained on, one for each turn.

    Raises:
        ValueError: The number of rewards isn't the number of turns, or a reward isn't a finite number in float32.
    """
    rewards = tuple(shaping(episode))
    if len(rewards) != len(episode.turns):
        raise ValueError(f"it returned {len(rewards)} rewards for {len(episode.turns)} turns")
    for number, reward in enumerate(rewards):
        if not _is_number(reward):
            raise ValueError(f"the reward of turn {number} is {reward!r}, not a finite number in float32")
    return tuple(map(float, rewards))


def _is_number(reward: object) -> bool:
    try:
        return abs(float(reward)) <= _LARGEST  # type: ignore[arg-type]  # other packages' code may return anything
    except (TypeError, ValueError, OverflowError):
        return False
