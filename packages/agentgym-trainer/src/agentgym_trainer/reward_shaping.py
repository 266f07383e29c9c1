"""Reward shaping: the rewards that episodes are trained on, where these aren't the environment's own.

Only training sees them: what is reported of an episode, its score and success, is the environment's, and so are the
rewards in the files of a run. Failed episodes are never shaped, as they never train.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from agentgym_envs import Episode

_LARGEST = 3.4028234e38  # of float32, in which rewards are trained on


class RewardShaping(Protocol):
    """The rewards that an episode is trained on: a function of an episode, or a frozen dataclass with `__call__` whose
    fields are its settings. `REWARDS` has those of this package, and those of other packages are named MODULE:NAME.
    """

    def __call__(self, episode: Episode, /) -> Sequence[float]:
        """The reward of each turn of an episode, as many as it has turns, plans and reflections among them.

        It sees what the episode holds (`turns` with `reward`, `action`, `valid` and `kind`, `stop`, `score`,
        `success`) and must depend on nothing else, so that a resumed run trains on the same. The environment's rewards
        sum to the score, which is from 0 to 1; penalties and bonuses are in that unit.
        """
        ...


@dataclass(frozen=True)
class EnvironmentReward:
    """The environment's own rewards: nothing is shaped."""

    def __call__(self, episode: Episode, /) -> Sequence[float]:
        """The reward of each turn."""
        return [turn.reward for turn in episode.turns]


@dataclass(frozen=True)
class PerTurn:
    """The environment's rewards, with penalties and a bonus for the turns that are actions. Plans, reflections and
    summaries keep their rewards.
    """

    turn_penalty: float = 0.0
    """Subtracted for each action, so that a shorter success is worth more."""
    invalid_penalty: float = 0.0
    """Subtracted for each action that the environment didn't understand or could not carry out. GiGPO's authors take
    0.1 (arXiv 2505.10978)."""
    format_bonus: float = 0.0
    """What an episode gets when an action could be read from every reply, and a share of it when from some: each of its
    n actions brings 1 / n of it, so that longer episodes earn no more."""

    def __post_init__(self) -> None:
        values = (self.turn_penalty, self.invalid_penalty, self.format_bonus)
        if not all(0 <= value < math.inf for value in values):
            raise ValueError(
                "reward needs turn_penalty, invalid_penalty and format_bonus that are finite and at least 0, "
                f"not {', '.join(f'{value:g}' for value in values)}."
            )

    def __call__(self, episode: Episode, /) -> Sequence[float]:
        """The reward of each turn."""
        bonus = self.format_bonus / max(1, episode.acts)
        return [
            turn.reward
            - (turn.kind == "act") * self.turn_penalty
            - (turn.kind == "act" and not turn.valid) * self.invalid_penalty
            + (turn.kind == "act" and turn.action is not None) * bonus
            for turn in episode.turns
        ]


REWARDS: dict[str, RewardShaping] = {"environment": EnvironmentReward(), "per-turn": PerTurn()}
"""Reward shaping by the names that the command line takes."""


def shaped_rewards(shaping: RewardShaping, episode: Episode) -> tuple[float, ...]:
    """The rewards that an episode is trained on, one for each turn.

    Raises:
        ValueError: when there aren't as many rewards as turns, or one isn't a finite number in float32.
    """
    rewards = tuple(shaping(episode))
    if len(rewards) != len(episode.turns):
        raise ValueError(f"it gave {len(rewards)} rewards for {len(episode.turns)} turns")
    for number, reward in enumerate(rewards):
        if not _is_number(reward):
            raise ValueError(f"the reward of turn {number} is {reward!r}, not a finite number in float32")
    return tuple(map(float, rewards))


def _is_number(reward: object) -> bool:
    try:
        return abs(float(reward)) <= _LARGEST  # type: ignore[arg-type]  # whatever the code of others returns
    except (TypeError, ValueError, OverflowError):
        return False
