"""What episodes come to: success, score, turns and pass@k with intervals, overall, per category and per difficulty.

Works on any episodes, played just now or read from disk. A failed episode is never scored: it is counted and shown.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
from agentgym_envs import Episode

from agentgym_eval.intervals import LEVEL, RESAMPLES, Interval, bootstrap
from agentgym_eval.pass_at_k import pass_at_k

SCHEMA = "agentgym.report/1"
_PACKAGES = (
    "agentgym-envs",
    "agentgym-eval",
    "agentgym-trainer",
    "gymnasium",
    "numpy",
    "playwright",
    "torch",
    "transformers",
    "vllm",
)


@dataclass(frozen=True, slots=True)
class Figures:
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
    """Turns per episode."""
    pass_at: Mapping[int, Interval]
    """By k. Its `tasks` are those with at least k attempts that did not fail; `left_out` counts the others."""

    def left_out(self, k: int) -> int:
        """How many tasks pass@k leaves out because failures left them fewer than k attempts."""
        return self.tasks - self.pass_at[k].tasks

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values; what is NaN here is None there."""
        figures: dict[str, Any] = {name: getattr(self, name) for name in ("tasks", "episodes", "failed")}
        figures |= {name: _interval(getattr(self, name)) for name in ("success", "score", "turns")}
        passes = {str(k): _interval(at) | {"left_out": self.left_out(k)} for k, at in self.pass_at.items()}
        return figures | {"pass_at": passes}


@dataclass(frozen=True, slots=True)
class Report:
    """Figures over all episodes and over the groups that tasks fall into."""

    overall: Figures
    by_category: Mapping[str, Figures]
    """In alphabetical order."""
    by_difficulty: Mapping[int, Figures]
    """Ascending."""
    stops: Mapping[str, int]
    """Episodes by the reason they ended."""
    faults: Mapping[str, int]
    """Failed episodes by what broke, the commonest first."""
    seed: int
    """Of the bootstrap."""

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values, under its schema's name."""
        return {
            "schema": SCHEMA,
            "intervals": {"method": "percentile bootstrap over tasks", "level": LEVEL, "resamples": RESAMPLES}
            | {"seed": self.seed},
            "stops": dict(self.stops),
            "faults": dict(self.faults),
            "overall": self.overall.to_dict(),
            "by_category": {name: figures.to_dict() for name, figures in self.by_category.items()},
            "by_difficulty": {str(level): figures.to_dict() for level, figures in self.by_difficulty.items()},
        }


def report(episodes: Iterable[Episode], *, ks: Sequence[int] = (1,), seed: int = 0) -> Report:
    """Figures of `episodes`, with intervals by bootstrap over tasks (`intervals.bootstrap`).

    Args:
        episodes: Any, in any order; the order changes nothing.
        ks: For which k pass@k is wanted.
        seed: Of the intervals. Each figure draws from its own generator, so none depends on the others.
    """
    played = sorted(episodes, key=lambda episode: (episode.task_id, episode.sample))
    faults = Counter(episode.error or "unknown" for episode in played if episode.failed)
    return Report(
        overall=_figures(played, ks, seed),
        by_category=_grouped(played, lambda episode: episode.category, ks, seed),
        by_difficulty=_grouped(played, lambda episode: episode.difficulty, ks, seed),
        stops=dict(sorted(Counter(episode.stop for episode in played).items())),
        faults=dict(faults.most_common()),
        seed=seed,
    )


_Group = TypeVar("_Group", str, int)


def _grouped(
    episodes: Sequence[Episode], group: Callable[[Episode], _Group], ks: Sequence[int], seed: int
) -> dict[_Group, Figures]:
    groups: dict[_Group, list[Episode]] = defaultdict(list)
    for episode in episodes:
        groups[group(episode)].append(episode)
    return {name: _figures(groups[name], ks, seed) for name in sorted(groups)}


def _figures(episodes: Sequence[Episode], ks: Sequence[int], seed: int) -> Figures:
    attempts: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        if not episode.failed:
            attempts[episode.task_id].append(episode)

    def mean(figure: Callable[[list[Episode]], float], least: int = 1) -> Interval:
        values = [figure(tried) for tried in attempts.values() if len(tried) >= least]
        return bootstrap(values, np.random.default_rng(seed))

    return Figures(
        tasks=len({episode.task_id for episode in episodes}),
        episodes=len(episodes),
        failed=sum(episode.failed for episode in episodes),
        success=mean(lambda tried: _successes(tried) / len(tried)),
        score=mean(lambda tried: fmean(episode.score or 0.0 for episode in tried)),
        turns=mean(lambda tried: fmean(len(episode.turns) for episode in tried)),
        pass_at={k: mean(lambda tried, k=k: pass_at_k(len(tried), _successes(tried), k), least=k) for k in ks},
    )


def _successes(attempts: Sequence[Episode]) -> int:
    return sum(episode.success is True for episode in attempts)


def _interval(interval: Interval) -> dict[str, Any]:
    values = asdict(interval)
    return {name: None if math.isnan(value) else value for name, value in values.items()}


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that figures may depend on, without importing any."""
    found = {"python": python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
