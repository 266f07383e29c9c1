"""Summary metrics of episodes: success, score, turns, tokens, pass@k and pass^k with intervals, overall and by group.

Works on any episodes, whether just played or read from disk. Failed episodes are never scored, but counted and
reported.
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
from numpy.typing import NDArray

from agentgym_eval.metrics.failure_causes import KINDS, Distances, EpisodeKey, failure_causes
from agentgym_eval.metrics.intervals import LEVEL, RESAMPLES, Interval, bootstrap, icc, share
from agentgym_eval.metrics.pass_at_k import pass_at_k, pass_hat_k

SCHEMA = "agentgym.report/3"
SHARES = "Wilson at the effective number of tasks or clusters of tasks"
"""Method of the intervals of success, score, pass@k and pass^k."""
MEANS = "expanded BCa bootstrap over tasks or clusters of tasks"
"""Method of the intervals of turns and tokens."""


@dataclass(frozen=True, slots=True)
class SummaryMetrics:
    """Metrics of a group of episodes. Every mean is over tasks, regardless of the number of attempts per task."""

    tasks: int
    """Number of played tasks, including those whose attempts all failed."""
    episodes: int
    """Number of played episodes, including failed ones."""
    failed: int
    """Number of episodes that broke for reasons other than the policy; excluded from all other metrics."""
    success: Interval
    """Share of attempts that fully reached the goal."""
    score: Interval
    turns: Interval
    """Actions per episode."""
    tokens: Interval
    """Completion tokens per episode, over episodes whose sampled ids were kept or whose endpoint counted them; NaN
    without such episodes."""
    icc: float
    """Intra-class correlation of success within clusters of tasks; NaN without clusters or with few tasks in them."""
    pass_at: Mapping[int, Interval]
    """pass@k by k. Its `tasks` counts those with at least k attempts that did not fail; `left_out` counts the
    others."""
    pass_hat: Mapping[int, Interval]
    """pass^k by k, over the same tasks."""
    stops: Mapping[str, int]
    """Number of episodes by stop reason, including failed ones."""

    def left_out(self, k: int) -> int:
        """Return the number of tasks excluded from pass@k and pass^k because failures left them fewer than k
        attempts.
        """
        return self.tasks - self.pass_at[k].tasks

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics as JSON values, with NaN as None."""
        metrics: dict[str, Any] = {name: getattr(self, name) for name in ("tasks", "episodes", "failed")}
        metrics |= {name: getattr(self, name).to_dict() for name in ("success", "score", "turns", "tokens")}
        metrics["icc"] = None if math.isnan(self.icc) else self.icc
        for name in ("pass_at", "pass_hat"):
            by_k: Mapping[int, Interval] = getattr(self, name)
            metrics[name] = {str(k): at.to_dict() | {"left_out": self.left_out(k)} for k, at in by_k.items()}
        return metrics | {"stops": dict(self.stops)}


@dataclass(frozen=True, slots=True)
class CauseShare:
    """How often unsuccessful episodes had one cause."""

    episodes: int
    """Number of unsuccessful episodes with this cause."""
    share: Interval
    """Share of attempts that failed for this cause, over tasks. Success and the shares of all causes add up to 1."""

    def to_dict(self) -> dict[str, Any]:
        """Return the share as JSON values, with NaN as None."""
        return {"episodes": self.episodes, "share": self.share.to_dict()}


@dataclass(frozen=True, slots=True)
class Report:
    """Metrics over all episodes and over groups of tasks."""

    overall: SummaryMetrics
    by_world: Mapping[str, SummaryMetrics]
    """By Gymnasium id, in alphabetical order."""
    by_category: Mapping[str, SummaryMetrics]
    """In alphabetical order."""
    by_difficulty: Mapping[int, SummaryMetrics]
    """Ascending."""
    by_turns: Mapping[int, Interval]
    """Share of attempts that succeeded within n actions, for n from 1 to the length of the longest episode. It is the
    success rate under a lower limit on actions for a policy that doesn't observe the limit."""
    pass_by_turns: Mapping[int, Mapping[int, float]]
    """By k, then by n: pass@k within n actions, the mean over the tasks with at least k attempts that did not fail."""
    faults: Mapping[str, int]
    """Number of failed episodes by error, the most frequent first."""
    causes: Mapping[str, CauseShare]
    """By kind of `FailureCause`, in the order of its `KINDS`, for the kinds that occurred."""
    seed: int
    """Seed of the bootstrap."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, with its schema."""
        return {
            "schema": SCHEMA,
            "intervals": {"level": LEVEL, "shares": SHARES, "means": MEANS, "resamples": RESAMPLES, "seed": self.seed},
            "faults": dict(self.faults),
            "causes": {kind: by.to_dict() for kind, by in self.causes.items()},
            "overall": self.overall.to_dict(),
            "by_world": {name: metrics.to_dict() for name, metrics in self.by_world.items()},
            "by_category": {name: metrics.to_dict() for name, metrics in self.by_category.items()},
            "by_difficulty": {str(level): metrics.to_dict() for level, metrics in self.by_difficulty.items()},
            "by_turns": {str(turns): at.to_dict() for turns, at in self.by_turns.items()},
            "pass_by_turns": {
                str(k): {str(turns): mean for turns, mean in by_turns.items()}
                for k, by_turns in self.pass_by_turns.items()
            },
        }


def report(
    episodes: Iterable[Episode],
    *,
    ks: Sequence[int] = (1,),
    seed: int = 0,
    distances: Mapping[EpisodeKey, Distances] | None = None,
) -> Report:
    """Compute the metrics of `episodes`, with intervals over tasks, or over clusters of tasks if tasks have them:
    `intervals.share` for values in [0, 1], `intervals.bootstrap` for turns and tokens.

    Args:
        episodes: Episodes in any order; the order doesn't affect the result.
        ks: Values of k for pass@k and pass^k.
        seed: Seed of the bootstrap. Each metric has its own generator, so none depends on the others.
        distances: The expert's distances in unsuccessful episodes, for the causes that need them.
    """
    played = sorted(episodes, key=lambda episode: (*task_of(episode), episode.sample))
    faults = Counter(episode.error or "unknown" for episode in played if episode.failed)
    return Report(
        overall=_metrics(played, ks, seed),
        by_world=_grouped(played, lambda episode: episode.env, ks, seed),
        by_category=_grouped(played, lambda episode: episode.category, ks, seed),
        by_difficulty=_grouped(played, lambda episode: episode.difficulty, ks, seed),
        by_turns=_by_turns(by_task(played)),
        pass_by_turns=_pass_by_turns(by_task(played), ks),
        faults=dict(faults.most_common()),
        causes=_causes(played, distances),
        seed=seed,
    )


def cause_shares(
    attempts: Mapping[TaskKey, Sequence[Episode]], distances: Mapping[EpisodeKey, Distances] | None = None
) -> dict[str, list[float]]:
    """Return, for each kind of cause, the share of attempts that failed for it at each task, in the order of tasks.

    Args:
        attempts: Attempts that did not break, by task.
        distances: The expert's distances in unsuccessful episodes.
    """
    counts = [Counter(at.kind for at in failure_causes(tried, distances) if at) for tried in attempts.values()]
    sizes = [len(tried) for tried in attempts.values()]
    return {kind: [by[kind] / size for by, size in zip(counts, sizes, strict=True)] for kind in KINDS}


TaskKey = tuple[str, str]
"""Environment and id of a task, because two environments may use the same ids."""


def task_of(episode: Episode) -> TaskKey:
    """Return the key of the episode's task."""
    return episode.env, episode.task_id


def cluster_of(episode: Episode) -> tuple[str, str, str]:
    """Return the cluster of the episode's task; a task without a cluster is one of its own."""
    return episode.env, episode.cluster, "" if episode.cluster else episode.task_id


def by_task(episodes: Iterable[Episode]) -> dict[TaskKey, list[Episode]]:
    """Group the attempts that did not fail by task; tasks whose attempts all failed are missing."""
    attempts: dict[TaskKey, list[Episode]] = defaultdict(list)
    for episode in episodes:
        if not episode.failed:
            attempts[task_of(episode)].append(episode)
    return dict(attempts)


def success_of(attempts: Sequence[Episode]) -> float:
    """Return the share of attempts that reached the goal."""
    return _successes(attempts) / len(attempts)


def score_of(attempts: Sequence[Episode]) -> float:
    """Return the mean score of attempts that did not fail."""
    return fmean(episode.score or 0.0 for episode in attempts)


def turns_of(attempts: Sequence[Episode]) -> float:
    """Return the mean number of actions per attempt."""
    return fmean(episode.acts for episode in attempts)


def _causes(played: Sequence[Episode], distances: Mapping[EpisodeKey, Distances] | None) -> dict[str, CauseShare]:
    tried = by_task(played)
    clusters = [cluster_of(attempts[0]) for attempts in tried.values()]
    counts = Counter(cause.kind for cause in failure_causes(played, distances) if cause)
    shares = cause_shares(tried, distances)
    return {kind: CauseShare(counts[kind], share(shares[kind], clusters)) for kind in KINDS if counts[kind]}


_Group = TypeVar("_Group", str, int)


def _grouped(
    episodes: Sequence[Episode], group: Callable[[Episode], _Group], ks: Sequence[int], seed: int
) -> dict[_Group, SummaryMetrics]:
    groups: dict[_Group, list[Episode]] = defaultdict(list)
    for episode in episodes:
        groups[group(episode)].append(episode)
    return {name: _metrics(groups[name], ks, seed) for name in sorted(groups)}


def _metrics(episodes: Sequence[Episode], ks: Sequence[int], seed: int) -> SummaryMetrics:
    tried = list(by_task(episodes).values())

    def mean(metric: Callable[[Sequence[Episode]], float | None]) -> Interval:
        return bootstrap(*_known(tried, metric), np.random.default_rng(seed), least=0.0)

    def part(metric: Callable[[Sequence[Episode]], float | None]) -> Interval:
        return share(*_known(tried, metric), np.random.default_rng(seed))

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
    tried: Sequence[Sequence[Episode]], metric: Callable[[Sequence[Episode]], float | None]
) -> tuple[list[float], list[tuple[str, str, str]]]:
    """Return the values of a metric for the tasks that have it, and their clusters."""
    known = [(value, cluster_of(attempts[0])) for attempts in tried if (value := metric(attempts)) is not None]
    return [value for value, _ in known], [cluster for _, cluster in known]


def _by_turns(tried: Mapping[TaskKey, Sequence[Episode]]) -> dict[int, Interval]:
    clusters = [cluster_of(attempts[0]) for attempts in tried.values()]
    longest = _longest(tried)
    shares = [_within(attempts, longest) / len(attempts) for attempts in tried.values()]
    return {turns: share(list(at), clusters) for turns, at in enumerate(np.array(shares).T.tolist(), 1)}


def _pass_by_turns(tried: Mapping[TaskKey, Sequence[Episode]], ks: Sequence[int]) -> dict[int, dict[int, float]]:
    found: dict[int, dict[int, float]] = {}
    longest = _longest(tried)
    for k in ks:
        enough = [(len(attempts), _within(attempts, longest)) for attempts in tried.values() if len(attempts) >= k]
        passes = np.array([[pass_at_k(n, int(successes), k) for successes in within] for n, within in enough])
        found[k] = dict(enumerate(passes.mean(0).tolist(), 1)) if enough else {}
    return found


def _longest(tried: Mapping[TaskKey, Sequence[Episode]]) -> int:
    return max((episode.acts for attempts in tried.values() for episode in attempts), default=0)


def _within(attempts: Sequence[Episode], longest: int) -> NDArray[np.int64]:
    """Return the number of attempts that succeeded within 1, 2, ..., `longest` actions."""
    acts = sorted(episode.acts for episode in attempts if episode.success)
    return np.searchsorted(acts, np.arange(1, longest + 1), side="right")


def _tokens_of(attempts: Sequence[Episode]) -> float | None:
    """Return the mean number of completion tokens over attempts that know them; None without such attempts."""
    counts = [tokens for tokens in map(_completion_tokens, attempts) if tokens is not None]
    return fmean(counts) if counts else None


def _successes(attempts: Sequence[Episode]) -> int:
    return sum(episode.success is True for episode in attempts)


def _completion_tokens(episode: Episode) -> int | None:
    """Return the number of completion tokens of an episode; None if they are unknown in a turn."""
    counts = [
        len(reply.sample.ids) if reply.sample else reply.usage.completion_tokens if reply.usage else None
        for reply in (turn.reply for turn in episode.turns)
    ]
    return sum(filter(None, counts)) if counts and None not in counts else None
