"""What episodes come to: success, score, turns, tokens, pass@k and pass^k with intervals, overall and in groups.

Works on any episodes, played just now or read from disk. A failed episode is never scored: it is counted and shown.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
from agentgym_envs import Episode

from agentgym_eval.metrics.intervals import LEVEL, RESAMPLES, Interval, bootstrap, icc, share
from agentgym_eval.metrics.pass_at_k import pass_at_k, pass_hat_k

SCHEMA = "agentgym.report/3"
SHARES = "Wilson at the effective number of tasks or clusters of tasks"
"""How success, score, pass@k and pass^k get their intervals."""
MEANS = "expanded BCa bootstrap over tasks or clusters of tasks"
"""How turns and tokens get theirs."""


@dataclass(frozen=True, slots=True)
class SummaryMetrics:
    """What a group of episodes comes to. Every mean is over tasks, whatever number of attempts each task has."""

    tasks: int
    """Tasks that were played, those included whose attempts all failed."""
    episodes: int
    """Episodes that were played, failed ones included."""
    failed: int
    """Episodes in which something broke that was not the player's doing; in no other figure."""
    success: Interval
    """Share of attempts that reached the goal exactly."""
    score: Interval
    turns: Interval
    """Actions per episode."""
    tokens: Interval
    """Tokens said per episode, in the episodes whose sampled ids were kept; NaN where none were."""
    icc: float
    """Intra-class correlation of success in the clusters of tasks; NaN where tasks have none."""
    pass_at: Mapping[int, Interval]
    """pass@k by k. Its `tasks` are those with at least k attempts that did not fail; `left_out` counts the others."""
    pass_hat: Mapping[int, Interval]
    """pass^k by k, over the same tasks."""
    stops: Mapping[str, int]
    """Episodes by the reason they ended, the failed ones included."""

    def left_out(self, k: int) -> int:
        """How many tasks pass@k and pass^k leave out because failures left them fewer than k attempts."""
        return self.tasks - self.pass_at[k].tasks

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values; what is NaN here is None there."""
        figures: dict[str, Any] = {name: getattr(self, name) for name in ("tasks", "episodes", "failed")}
        figures |= {name: getattr(self, name).to_dict() for name in ("success", "score", "turns", "tokens")}
        figures["icc"] = None if math.isnan(self.icc) else self.icc
        for name in ("pass_at", "pass_hat"):
            by_k: Mapping[int, Interval] = getattr(self, name)
            figures[name] = {str(k): at.to_dict() | {"left_out": self.left_out(k)} for k, at in by_k.items()}
        return figures | {"stops": dict(self.stops)}


@dataclass(frozen=True, slots=True)
class Report:
    """Figures over all episodes and over the groups that tasks fall into."""

    overall: SummaryMetrics
    by_world: Mapping[str, SummaryMetrics]
    """By Gymnasium id, in alphabetical order."""
    by_category: Mapping[str, SummaryMetrics]
    """In alphabetical order."""
    by_difficulty: Mapping[int, SummaryMetrics]
    """Ascending."""
    by_turns: Mapping[int, Interval]
    """Share of attempts that had succeeded within so many actions, from 1 to as many as the longest episode has. It is
    what a lower limit on actions would have left of the success of a player who doesn't know of the limit."""
    faults: Mapping[str, int]
    """Failed episodes by what broke, the commonest first."""
    seed: int
    """Of the bootstrap."""

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values, under its schema's name."""
        return {
            "schema": SCHEMA,
            "intervals": {"level": LEVEL, "shares": SHARES, "means": MEANS, "resamples": RESAMPLES, "seed": self.seed},
            "faults": dict(self.faults),
            "overall": self.overall.to_dict(),
            "by_world": {name: figures.to_dict() for name, figures in self.by_world.items()},
            "by_category": {name: figures.to_dict() for name, figures in self.by_category.items()},
            "by_difficulty": {str(level): figures.to_dict() for level, figures in self.by_difficulty.items()},
            "by_turns": {str(turns): at.to_dict() for turns, at in self.by_turns.items()},
        }


def report(episodes: Iterable[Episode], *, ks: Sequence[int] = (1,), seed: int = 0) -> Report:
    """Figures of `episodes`, with intervals over tasks, or over clusters of tasks where tasks have them:
    `intervals.share` of what lies in [0, 1], `intervals.bootstrap` of turns and tokens.

    Args:
        episodes: Any, in any order; the order changes nothing.
        ks: For which k pass@k and pass^k are wanted.
        seed: Of the bootstrap. Each figure draws from its own generator, so none depends on the others.
    """
    played = sorted(episodes, key=lambda episode: (*task_of(episode), episode.sample))
    faults = Counter(episode.error or "unknown" for episode in played if episode.failed)
    return Report(
        overall=_figures(played, ks, seed),
        by_world=_grouped(played, lambda episode: episode.env, ks, seed),
        by_category=_grouped(played, lambda episode: episode.category, ks, seed),
        by_difficulty=_grouped(played, lambda episode: episode.difficulty, ks, seed),
        by_turns=_by_turns(by_task(played)),
        faults=dict(faults.most_common()),
        seed=seed,
    )


TaskKey = tuple[str, str]
"""Environment and id of a task; the ids alone may be the same in two environments."""


def task_of(episode: Episode) -> TaskKey:
    """The task that was played."""
    return episode.env, episode.task_id


def cluster_of(episode: Episode) -> tuple[str, str, str]:
    """The cluster of the task that was played; that of a task that is like no other holds nothing else."""
    return episode.env, episode.cluster, "" if episode.cluster else episode.task_id


def by_task(episodes: Iterable[Episode]) -> dict[TaskKey, list[Episode]]:
    """The attempts at each task that did not fail; a task whose attempts all did is not there."""
    attempts: dict[TaskKey, list[Episode]] = defaultdict(list)
    for episode in episodes:
        if not episode.failed:
            attempts[task_of(episode)].append(episode)
    return dict(attempts)


def success_of(attempts: Sequence[Episode]) -> float:
    """The share of attempts that reached the goal."""
    return _successes(attempts) / len(attempts)


def score_of(attempts: Sequence[Episode]) -> float:
    """The mean score of attempts that did not fail."""
    return fmean(episode.score or 0.0 for episode in attempts)


def turns_of(attempts: Sequence[Episode]) -> float:
    """The mean number of actions."""
    return fmean(episode.acts for episode in attempts)


_Group = TypeVar("_Group", str, int)


def _grouped(
    episodes: Sequence[Episode], group: Callable[[Episode], _Group], ks: Sequence[int], seed: int
) -> dict[_Group, SummaryMetrics]:
    groups: dict[_Group, list[Episode]] = defaultdict(list)
    for episode in episodes:
        groups[group(episode)].append(episode)
    return {name: _figures(groups[name], ks, seed) for name in sorted(groups)}


def _figures(episodes: Sequence[Episode], ks: Sequence[int], seed: int) -> SummaryMetrics:
    tried = list(by_task(episodes).values())

    def mean(figure: Callable[[Sequence[Episode]], float | None]) -> Interval:
        return bootstrap(*_known(tried, figure), np.random.default_rng(seed))

    def part(figure: Callable[[Sequence[Episode]], float | None]) -> Interval:
        return share(*_known(tried, figure), np.random.default_rng(seed))

    def passes(estimate: Callable[[int, int, int], float], k: int) -> Interval:
        return part(lambda a: estimate(len(a), _successes(a), k) if len(a) >= k else None)

    return SummaryMetrics(
        tasks=len({task_of(episode) for episode in episodes}),
        episodes=len(episodes),
        failed=sum(episode.failed for episode in episodes),
        success=part(success_of),
        score=part(score_of),
        turns=mean(turns_of),
        tokens=mean(_tokens_of),
        icc=icc(*_known(tried, success_of)),
        pass_at={k: passes(pass_at_k, k) for k in ks},
        pass_hat={k: passes(pass_hat_k, k) for k in ks},
        stops=dict(sorted(Counter(episode.stop for episode in episodes).items())),
    )


def _known(
    tried: Sequence[Sequence[Episode]], figure: Callable[[Sequence[Episode]], float | None]
) -> tuple[list[float], list[tuple[str, str, str]]]:
    """A figure of the tasks that have it, and their clusters."""
    known = [(value, cluster_of(attempts[0])) for attempts in tried if (value := figure(attempts)) is not None]
    return [value for value, _ in known], [cluster for _, cluster in known]


def _by_turns(tried: Mapping[TaskKey, Sequence[Episode]]) -> dict[int, Interval]:
    longest = max((episode.acts for attempts in tried.values() for episode in attempts), default=0)
    allowed = np.arange(1, longest + 1)
    clusters = [cluster_of(attempts[0]) for attempts in tried.values()]
    within = np.array(
        [
            np.searchsorted(sorted(episode.acts for episode in attempts if episode.success), allowed, side="right")
            / len(attempts)
            for attempts in tried.values()
        ]
    )
    return {int(turns): share(within[:, i].tolist(), clusters) for i, turns in enumerate(allowed)}


def _tokens_of(attempts: Sequence[Episode]) -> float | None:
    """The mean number of tokens that were sampled in the attempts that kept them; None where none did."""
    said = [tokens for tokens in map(_said, attempts) if tokens is not None]
    return fmean(said) if said else None


def _successes(attempts: Sequence[Episode]) -> int:
    return sum(episode.success is True for episode in attempts)


def _said(episode: Episode) -> int | None:
    """The tokens that were sampled in an episode; None where they weren't kept."""
    samples = [turn.reply.sample for turn in episode.turns]
    return sum(len(sample.ids) for sample in samples if sample) if samples and None not in samples else None
