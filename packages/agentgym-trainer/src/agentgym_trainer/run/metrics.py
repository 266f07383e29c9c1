"""Metrics over the episodes and groups of a training step. Knows neither models nor learners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, get_args

from agentgym_envs.episodes.episode import Kind

from agentgym_trainer.algorithms.group_filter import GroupKind as GroupKind
from agentgym_trainer.config import RLConfig
from agentgym_trainer.rollout.groups import EpisodeOutcome, GroupOutcome


def step_metrics(groups: Sequence[GroupOutcome], worlds: Sequence[str]) -> dict[str, Any]:
    """Figures over all episodes of a step, over those of each world, and how many groups there are of each kind."""

    def figures(played: Sequence[GroupOutcome]) -> dict[str, Any]:
        return {
            **episode_metrics([episode for group in played for episode in group.episodes]),
            "group_return_std": group_return_std(played),
        }

    kinds = Counter(group.kind for group in groups)
    return {
        **figures(groups),
        "worlds": {world: figures([group for group in groups if group.world == world]) for world in worlds},
        "groups": {"all": len(groups)} | {kind: kinds[kind] for kind in get_args(GroupKind)},
    }


def group_return_std(groups: Sequence[GroupOutcome]) -> float | None:
    """Standard deviation (n - 1 in the denominator) of the returns that the episodes of a group are trained on, as a
    mean over the groups in which at least two did not fail; None where there is no such group.
    """
    scored = [[episode for episode in group.episodes if episode.stop != "failed"] for group in groups]
    spreads = [
        stdev((e.score or 0.0) if e.shaped is None else e.shaped for e in episodes)
        for episodes in scored
        if len(episodes) > 1
    ]
    return fmean(spreads) if spreads else None


def episode_metrics(episodes: Sequence[EpisodeOutcome]) -> dict[str, Any]:
    """Means over the episodes that did not fail, None where all did; and tokens of all, whether they train or not."""
    scored = [episode for episode in episodes if episode.stop != "failed"]
    said = sum(episode.completion_tokens for episode in episodes)

    def mean(figure: Callable[[EpisodeOutcome], float | None]) -> float | None:
        known = [value for value in map(figure, scored) if value is not None]
        return fmean(known) if known else None

    return {
        "episodes": len(episodes),
        "success": mean(lambda episode: bool(episode.success)),
        "score": mean(lambda episode: episode.score or 0.0),
        **({"shaped_return": shaped} if (shaped := mean(lambda episode: episode.shaped)) is not None else {}),
        "turns": mean(lambda episode: episode.turns),
        "trials": mean(lambda episode: episode.trials),
        "valid": mean(lambda episode: episode.valid),
        "failed": len(episodes) - len(scored),
        "stops": dict(Counter(episode.stop for episode in episodes)),
        "segments": sum(episode.contexts for episode in episodes),
        "tokens": {"total": said + sum(episode.prompt_tokens for episode in episodes), "completion": said},
        "kinds": _by_kind(scored),
    }


def _by_kind(episodes: Sequence[EpisodeOutcome]) -> dict[Kind, dict[str, float]]:
    """For each kind of turn that there is: how many an episode has, and how many tokens a reply, on average."""
    said: dict[Kind, list[int]] = {}
    for kind, tokens in (reply for episode in episodes for reply in episode.replies):
        said.setdefault(kind, []).append(tokens)
    return {
        kind: {"turns": len(tokens) / len(episodes), "tokens": fmean(tokens)} for kind, tokens in sorted(said.items())
    }


def success_metrics(
    played: Mapping[Any, Iterable[EpisodeOutcome]], world: str | None = None
) -> dict[str, float | None]:
    """Success in an evaluation, of one world or of all, by the manner of sampling."""
    return {
        manner: success_rate([episode for episode in episodes if world in (None, episode.world)])
        for manner, episodes in played.items()
    }


def batch_fill(groups: Sequence[GroupOutcome], config: RLConfig) -> float:
    """How much of a full batch trains, by completion tokens: those in the loss, over those of `tasks` x `samples`
    episodes as long as the step's are on average. 0 where nothing was said.
    """
    played = [episode for group in groups for episode in group.episodes]
    kept = [episode for group in groups if group.treatment == "keep" for episode in group.episodes]
    trained = sum(e.completion_tokens for e in kept if e.stop != "failed" and e.stop not in config.masked)
    said = sum(episode.completion_tokens for episode in played)
    return trained * len(played) / (said * config.tasks_per_step * config.group_size) if said else 0.0


def success_rate(episodes: Iterable[EpisodeOutcome]) -> float | None:
    """Mean over tasks, as reports have it; None when every episode failed."""
    by_task = task_means(episodes)
    return fmean(by_task.values()) if by_task else None


def success_by_task(groups: Iterable[GroupOutcome]) -> dict[str, float]:
    """Mean success of each task over all its groups; tasks of which every episode failed are left out."""
    return task_means(episode for group in groups for episode in group.episodes)


def task_means(episodes: Iterable[EpisodeOutcome]) -> dict[str, float]:
    """Mean success of each task; tasks of which every episode failed are left out."""
    by_task: dict[str, list[bool]] = {}
    for episode in episodes:
        if episode.stop != "failed":
            by_task.setdefault(episode.task, []).append(bool(episode.success))
    return {task: fmean(known) for task, known in by_task.items()}


def cut_while_improving(groups: Sequence[GroupOutcome]) -> float:
    """Share of the episodes that the horizon ended while they were still earning."""
    scored = [episode for group in groups for episode in group.episodes if episode.stop != "failed"]
    return sum(episode.cut for episode in scored) / max(1, len(scored))
