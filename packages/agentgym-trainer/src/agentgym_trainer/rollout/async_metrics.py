"""Metrics of asynchronous rollouts: staleness, and whether the lengths that train are those that were drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from agentgym_trainer.rollout.groups import EpisodeOutcome, GroupOutcome

_QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "max": 1.0}


def staleness_metrics(groups: Sequence[GroupOutcome], version: int, allowed: int) -> dict[str, Any]:
    """How many updates the sampling weights are behind `version`.

    Returns:
        `mean` and `max` over the groups that are kept, each counted by its oldest token; `stale`, the number of groups
        that are further behind than `allowed`; `token_mean`, the mean over the completion tokens that train; and
        `tokens`, the number of those tokens by lag.
    """
    kept = [group.lag(version) for group in groups if group.treatment == "keep"]
    stale = sum(group.lag(version) > allowed for group in groups)
    tokens = Counter[int]()
    for sampled_with, count in (some for g in groups for e in g.trained for some in e.tokens_by_version):
        tokens[version - sampled_with] += count
    total = tokens.total()
    return {
        "mean": fmean(kept) if kept else None,
        "max": max(kept, default=None),
        "stale": stale,
        "token_mean": sum(lag * count for lag, count in tokens.items()) / total if total else None,
        "tokens": {str(lag): count for lag, count in sorted(tokens.items())},
    }


def length_metrics(groups: Sequence[GroupOutcome]) -> dict[str, Any]:
    """The distribution of episode lengths in a step, in `turns` (actions) and in completion `tokens`.

    Args:
        groups: Outcomes of all groups that the step collected, including those that are dropped.

    Returns:
        The mean and the linearly interpolated quantiles of each length, for all episodes (`drawn`, including failed
        ones) and for those that train (`trained`); None where there are no episodes. With `on_stale` keep, a step
        collects the groups that are complete first, so that both are too short in the first steps.
    """
    drawn = [episode for group in groups for episode in group.episodes]
    trained = [episode for group in groups for episode in group.trained]
    return {"drawn": _lengths(drawn), "trained": _lengths(trained)}


def _lengths(episodes: Sequence[EpisodeOutcome]) -> dict[str, dict[str, float | None]]:
    return {
        "turns": _distribution([episode.turns for episode in episodes]),
        "tokens": _distribution([episode.completion_tokens for episode in episodes]),
    }


def _distribution(lengths: Sequence[int]) -> dict[str, float | None]:
    if not lengths:
        return dict.fromkeys(("mean", *_QUANTILES))
    quantiles = np.quantile(lengths, list(_QUANTILES.values())).tolist()
    return {"mean": float(np.mean(lengths)), **dict(zip(_QUANTILES, quantiles, strict=True))}
