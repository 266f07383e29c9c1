"""Figures of what is sampled ahead: how old it is when it trains, and whether it is as long as what was drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from agentgym_trainer.rollout.groups import EpisodeOutcome, GroupOutcome

_QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "max": 1.0}


def staleness_metrics(groups: Sequence[GroupOutcome], version: int, allowed: int) -> dict[str, Any]:
    """How far what trains lags behind this version, in updates.

    `mean` and `max` are over the groups that are kept, of which each counts as its oldest token; `stale` is how many of
    all groups lag by more than is allowed. `token_mean` is the mean over the completion tokens that are trained, and
    `tokens` has, by lag, how many of them there are.
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
        groups: What came of all groups that the step has taken, those that are left out among them.

    Returns:
        For all episodes (`drawn`, failed ones included) and for those that the update learns from (`trained`), the mean
        and quantiles of each length, interpolated linearly; None where there are no episodes.
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
