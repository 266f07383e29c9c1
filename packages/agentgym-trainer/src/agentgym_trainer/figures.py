"""The groups of a step, and figures over their episodes. Knows neither models nor learners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from agentgym_envs import Episode

from agentgym_trainer.algorithms.groups import Groups, Kind, Treatment
from agentgym_trainer.horizon import improving


@dataclass(frozen=True, slots=True)
class Group:
    """The episodes of one task in one step."""

    episodes: tuple[Episode, ...]
    usable: tuple[Episode, ...]
    """Those that may train: neither failed nor, where the configuration says so, cut at the token budget."""
    kind: Kind
    treatment: Treatment

    @property
    def world(self) -> str:
        """Name of the world."""
        return self.episodes[0].env

    @property
    def task(self) -> str:
        """Id of the task."""
        return self.episodes[0].task_id

    @classmethod
    def judged(cls, episodes: Sequence[Episode], rules: Groups, *, train_cut: bool) -> Group:
        """The group that these episodes are, by these rules."""
        usable = tuple(e for e in episodes if not e.failed and (train_cut or e.stop != "length"))
        returns = [sum(turn.reward for turn in episode.turns) for episode in usable]
        kind, treatment = rules.judge(returns, failed=sum(e.failed for e in episodes))
        return cls(tuple(episodes), usable, kind, treatment)


def episode_figures(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Means over the episodes that did not fail, None where all did; and tokens of all, whether they train or not."""
    scored = [episode for episode in episodes if not episode.failed]
    samples = [turn.reply.sample for episode in episodes for turn in episode.turns if turn.reply.sample]
    said = sum(len(sample.ids) for sample in samples)

    def mean(figure: Callable[[Episode], float]) -> float | None:
        return fmean(map(figure, scored)) if scored else None

    return {
        "success": mean(lambda episode: bool(episode.success)),
        "score": mean(lambda episode: episode.score or 0.0),
        "turns": mean(lambda episode: len(episode.turns)),
        "valid": mean(lambda episode: fmean(turn.valid for turn in episode.turns)),
        "failed": len(episodes) - len(scored),
        "stops": dict(Counter(episode.stop for episode in episodes)),
        "tokens": {"seen": said + sum(len(sample.prompt) for sample in samples), "said": said},
    }


def world_figures(name: str, groups: Sequence[Group], held_out: Mapping[Any, Sequence[Episode]]) -> dict[str, Any]:
    """What one world of the run contributes to a step's line."""
    played = [episode for group in groups if group.world == name for episode in group.episodes]
    tested = {manner: success_rate([e for e in episodes if e.env == name]) for manner, episodes in held_out.items()}
    return {"episodes": len(played), **episode_figures(played), "held_out": tested}


def success_rate(episodes: Sequence[Episode]) -> float | None:
    """Mean over tasks, as reports have it; None when every episode failed."""
    by_task: dict[str, list[bool]] = {}
    for episode in episodes:
        if not episode.failed:
            by_task.setdefault(episode.task_id, []).append(bool(episode.success))
    return fmean(map(fmean, by_task.values())) if by_task else None


def cut_while_improving(groups: Sequence[Group]) -> float:
    """Share of the episodes that the horizon ended while they were still earning."""
    scored = [episode for group in groups for episode in group.episodes if not episode.failed]
    cut = [e for e in scored if e.stop == "truncated" and improving([turn.reward for turn in e.turns])]
    return len(cut) / max(1, len(scored))
