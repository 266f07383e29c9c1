"""What the tests of group-relative estimators share: settings to draw, and slow implementations, one value after the
other."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from agentgym_trainer.algorithms import GoalDistance, GroupRelative, NestedStepGroups, StepGroups
from hypothesis import strategies as st
from token_batches import EpisodeSketch, Step, Token, reference_normalize, single_process_total, token_batch_of
from torch import Tensor

Estimator = GroupRelative | StepGroups | NestedStepGroups | GoalDistance
scales: Any = st.sampled_from(["std", "none"])
baselines: Any = st.sampled_from(["mean", "leave_one_out", "length"])
anchors: Any = st.sampled_from(["observation", "state"])


def advantages(estimator: Estimator, episodes: list[EpisodeSketch], penalty_N: Tensor | None = None) -> Tensor:
    """Return the advantages of all completion tokens, N."""
    result = estimator.estimate(token_batch_of(episodes), penalty_N, single_process_total)
    assert result.value_targets_N is None
    assert result.advantages_N.dtype == torch.float32
    return result.advantages_N


def visits(reward: float, *observations: int, group: int = 0) -> EpisodeSketch:
    """Return an episode of one-token turns in these states, whose last turn has the reward."""
    steps = [Step(0.0, [Token()], number, number) for number in observations]
    steps[-1].reward = reward
    return EpisodeSketch(group, steps)


def slow_relative(
    values: Sequence[float], groups: Sequence[Hashable], lengths: Sequence[int], estimator: Estimator
) -> list[float]:
    """Return (value - baseline) / scale for one value after the other."""
    advantages: list[float] = []
    for i, own_group in enumerate(groups):
        group_values = [value for value, group in zip(values, groups, strict=True) if group == own_group]
        group_lengths = [length for length, group in zip(lengths, groups, strict=True) if group == own_group]
        others = [values[j] for j, group in enumerate(groups) if group == own_group and j != i]
        if not others or max(group_values) - min(group_values) < 1e-9:
            advantages.append(0.0)
            continue
        if estimator.baseline == "leave_one_out":
            centered = values[i] - statistics.fmean(others)
        elif estimator.baseline == "length" and any(group_lengths):
            weighted = sum(length * value for length, value in zip(group_lengths, group_values, strict=True))
            centered = values[i] - weighted / sum(group_lengths)
        else:
            centered = values[i] - statistics.fmean(group_values)
        advantages.append(centered / statistics.stdev(group_values) if estimator.scale == "std" else centered)
    return advantages


def slow_turns(play: EpisodeSketch) -> list[float]:
    """Return the reward of each turn minus its penalties. Turns without completion tokens pass it to another turn."""
    rewards = [step.reward - sum(token.penalty for token in step.tokens) for step in play.steps]
    turns_with_tokens = [k for k, step in enumerate(play.steps) if step.tokens]
    for k, step in enumerate(play.steps):
        if not step.tokens and turns_with_tokens:
            receiver = max((j for j in turns_with_tokens if j < k), default=turns_with_tokens[0])
            rewards[receiver], rewards[k] = rewards[receiver] + rewards[k], 0.0
    return rewards


def slow_to_go(play: EpisodeSketch, gamma: float) -> list[float]:
    rewards = slow_turns(play)
    return [sum(gamma ** (j - k) * rewards[j] for j in range(k, len(rewards))) for k in range(len(rewards))]


def expand_to_tokens(
    episodes: list[EpisodeSketch], estimator: Estimator, per_turn: Callable[[int, int], float]
) -> list[float]:
    advantages = [
        per_turn(e, k) for e, play in enumerate(episodes) for k, step in enumerate(play.steps) for _ in step.tokens
    ]
    return reference_normalize(advantages) if estimator.whiten else advantages
