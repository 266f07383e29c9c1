"""Slow implementations of what group-relative estimators share, one value after the other."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Sequence

from agentgym_trainer.algorithms import GoalDistance, GroupRelative, NestedStepGroups, StepGroups
from token_batches import EpisodeSketch, reference_normalize

Estimator = GroupRelative | StepGroups | NestedStepGroups | GoalDistance


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
