"""Metrics over the episodes and groups of a training step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, get_args

from agentgym_envs.episodes.episode import Kind
from agentgym_eval.metrics.failure_causes import KINDS, ORACLE_KINDS

from agentgym_trainer.algorithms.group_filter import GroupKind as GroupKind
from agentgym_trainer.config import Evaluation, RLConfig
from agentgym_trainer.rollout.groups import EpisodeOutcome, GroupOutcome


def step_metrics(groups: Sequence[GroupOutcome], worlds: Sequence[str]) -> dict[str, Any]:
    """Return the metrics over all episodes of a step, over those of each environment, and group counts by kind."""

    def metrics(played: Sequence[GroupOutcome]) -> dict[str, Any]:
        return {
            **episode_metrics([episode for group in played for episode in group.episodes]),
            "group_return_std": group_return_std(played),
        }

    kinds = Counter(group.kind for group in groups)
    return {
        **metrics(groups),
        "worlds": {world: metrics([group for group in groups if group.world == world]) for world in worlds},
        "groups": {"all": len(groups)} | {kind: kinds[kind] for kind in get_args(GroupKind)},
    }


def group_return_std(groups: Sequence[GroupOutcome]) -> float | None:
    """Return the mean standard deviation (denominator n - 1) of the training returns within a group.

    The mean is over groups with at least two episodes that did not fail; None if there is no such group.
    """
    scored = [[episode for episode in group.episodes if episode.stop != "failed"] for group in groups]
    spreads = [
        stdev((e.score or 0.0) if e.shaped is None else e.shaped for e in episodes)
        for episodes in scored
        if len(episodes) > 1
    ]
    return fmean(spreads) if spreads else None


def episode_metrics(episodes: Sequence[EpisodeOutcome]) -> dict[str, Any]:
    """Return means over the episodes that did not fail (None if all did), and token counts over all episodes."""
    scored = [episode for episode in episodes if episode.stop != "failed"]
    completion = sum(episode.completion_tokens for episode in episodes)

    def mean(metric: Callable[[EpisodeOutcome], float | None]) -> float | None:
        known = [value for value in map(metric, scored) if value is not None]
        return fmean(known) if known else None

    return {
        "episodes": len(episodes),
        "success": mean(lambda episode: bool(episode.success)),
        "score": mean(lambda episode: episode.score or 0.0),
        **({"shaped_return": shaped} if (shaped := mean(lambda episode: episode.shaped)) is not None else {}),
        "turns": mean(lambda episode: episode.turns),
        **({"expert_turns": led} if (led := mean(lambda episode: episode.expert_turns)) else {}),
        "trials": mean(lambda episode: episode.trials),
        "valid": mean(lambda episode: episode.valid),
        "failures": _failures(scored, [kind for kind in KINDS if kind not in ORACLE_KINDS]),
        "failed": len(episodes) - len(scored),
        "stops": dict(Counter(episode.stop for episode in episodes)),
        "segments": sum(episode.contexts for episode in episodes),
        "tokens": {"total": completion + sum(episode.prompt_tokens for episode in episodes), "completion": completion},
        "kinds": _by_kind(scored),
    }


def _failures(episodes: Sequence[EpisodeOutcome], kinds: Sequence[str]) -> dict[str, float]:
    """Return, for each of these causes of failure, the share of episodes that failed for it."""
    counts = Counter(episode.cause for episode in episodes)
    return {kind: counts[kind] / len(episodes) for kind in kinds} if episodes else {}


def _by_kind(episodes: Sequence[EpisodeOutcome]) -> dict[Kind, dict[str, float]]:
    """Return, for each kind of turn, the mean number of turns per episode and of tokens per reply."""
    lengths: dict[Kind, list[int]] = {}
    for kind, tokens in (reply for episode in episodes for reply in episode.replies):
        lengths.setdefault(kind, []).append(tokens)
    return {
        kind: {"turns": len(tokens) / len(episodes), "tokens": fmean(tokens)}
        for kind, tokens in sorted(lengths.items())
    }


def evaluation_metrics(
    played: Mapping[Any, Sequence[EpisodeOutcome]], settings: Evaluation, world: str | None = None
) -> dict[str, Any]:
    """Return the success rates of an evaluation, by its split, and with `forensics` the shares of its sampled episodes
    that failed for each cause: in one environment or in all.
    """
    found: dict[str, Any] = {settings.split: success_metrics(played, world)}
    if settings.forensics and played:
        chosen = [e for e in played["sampled"] if world in (None, e.world) and e.stop != "failed"]
        found[f"{settings.split}_failures"] = _failures(chosen, KINDS)
    return found


def success_metrics(
    played: Mapping[Any, Iterable[EpisodeOutcome]], world: str | None = None
) -> dict[str, float | None]:
    """Return the success rate of an evaluation in one environment or in all, by decoding: sampled or greedy."""
    return {
        decoding: success_rate([episode for episode in episodes if world in (None, episode.world)])
        for decoding, episodes in played.items()
    }


def batch_fill(groups: Sequence[GroupOutcome], config: RLConfig) -> float:
    """Return the share of a full batch that trains, measured in completion tokens.

    It is the number of completion tokens in the loss, divided by that of `tasks_per_step` x `group_size` episodes of
    the step's mean length, or of more if `turns_per_step` needed more groups; 0 if there are no completion tokens.
    """
    groups_wanted = max(config.tasks_per_step, sum(group.treatment != "resample" for group in groups))
    played = [episode for group in groups for episode in group.episodes]
    kept = [episode for group in groups if group.treatment == "keep" for episode in group.episodes]
    trained = sum(e.completion_tokens for e in kept if e.stop != "failed" and e.stop not in config.masked)
    completion = sum(episode.completion_tokens for episode in played)
    return trained * len(played) / (completion * groups_wanted * config.group_size) if completion else 0.0


def success_rate(episodes: Iterable[EpisodeOutcome]) -> float | None:
    """Return the mean success over tasks, as in evaluation reports; None if every episode failed."""
    by_task = selection_means(episode for episode in episodes if episode.stop != "failed")
    return fmean(by_task.values()) if by_task else None


def success_by_task(groups: Iterable[GroupOutcome]) -> dict[str, float]:
    """Return the mean success by the id of the task over all its groups, without tasks of which every episode failed.

    Samplers know tasks by their ids: environments whose tasks have the same ids share their success.
    """
    episodes = (episode for group in groups for episode in group.episodes if episode.stop != "failed")
    return _means((episode.task, episode) for episode in episodes)


def selection_means(episodes: Iterable[EpisodeOutcome]) -> dict[str, float]:
    """Return the mean success of each task, by environment and id, where a failed episode is no success.

    Checkpoints and stages are selected by it. Without the failed episodes, a policy whose actions break the environment
    in hard tasks would be compared on the easy ones.
    """
    return _means((f"{episode.world} {episode.task}", episode) for episode in episodes)


def _means(keyed: Iterable[tuple[str, EpisodeOutcome]]) -> dict[str, float]:
    """Return the mean success of the episodes of each key, where a failed episode is no success."""
    found: dict[str, list[bool]] = {}
    for key, episode in keyed:
        found.setdefault(key, []).append(episode.stop != "failed" and bool(episode.success))
    return {key: fmean(known) for key, known in found.items()}


def selection_success(episodes: Iterable[EpisodeOutcome]) -> float | None:
    """Return the mean of `selection_means` over tasks; None if there are no episodes."""
    by_task = selection_means(episodes)
    return fmean(by_task.values()) if by_task else None


def cut_while_improving(groups: Sequence[GroupOutcome], stage: int) -> float | None:
    """Return the share of a stage's episodes that the horizon truncated while they still earned reward; None if all
    groups are of other stages, as in the first updates of a stage of an asynchronous run.
    """
    if not any(group.stage == stage for group in groups):
        return None
    scored = [e for group in groups if group.stage == stage for e in group.episodes if e.stop != "failed"]
    return sum(episode.cut for episode in scored) / max(1, len(scored))
