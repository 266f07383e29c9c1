"""What a collection of episodes holds, in figures: its data card as JSON values. Knows neither files nor Markdown."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from agentgym_envs import Episode, Turn
from agentgym_envs.episodes.episode import SCHEMA as EPISODE_SCHEMA

from agentgym_eval.storage.provenance import provenance

SCHEMA = "agentgym.card/1"


@dataclass(frozen=True, slots=True)
class Spread:
    """How a length is spread over episodes."""

    least: float
    median: float
    mean: float
    most: float

    @classmethod
    def of(cls, values: Sequence[int]) -> Spread | None:
        """The spread of `values`; None of no values."""
        return cls(min(values), median(values), fmean(values), max(values)) if values else None


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long the kept episodes are, over all kept ones; None where there are none."""

    actions: Spread | None
    """Replies that are actions."""
    turns: Spread | None
    """Replies of any kind: actions, plans, reflections, summaries."""
    said: Spread | None
    """Characters of the replies."""
    characters: Spread | None
    """Characters of the instructions, observations and replies, each counted once."""


@dataclass(frozen=True, slots=True)
class Share:
    """Figures of the episodes of one world, or of all. Means are over episodes; a report has intervals, too."""

    env: str
    """Gymnasium id of the world; empty for all."""
    played: int
    failed: int
    """Episodes that broke through nobody's doing. They are never kept, and in no figure but this and `played`."""
    kept: int
    kept_share: float
    """Of those played."""
    tasks: int
    """Different tasks among the kept."""
    duplicates: int
    """Kept episodes in which the same was seen and said as in an earlier one of the same task."""
    success: float | None
    """Share of the kept that reached the goal; None where none was kept."""
    success_played: float | None
    """The same of all that did not fail: how well whoever played did."""
    score: float | None
    """Mean score of the kept."""
    score_played: float | None
    """Mean score of all that did not fail."""
    lengths: Lengths
    splits: Mapping[str, int]
    """Kept episodes by split; so below by policy, agent, category, the way they ended, and their turns by kind."""
    policies: Mapping[str, int]
    agents: Mapping[str, int]
    categories: Mapping[str, int]
    stops: Mapping[str, int]
    kinds: Mapping[str, int]

    @property
    def summary(self) -> str:
        """One line for a terminal."""
        success = "-" if self.success_played is None else f"{self.success_played:.1%}"
        counts = f"kept {self.kept} of {self.played} played, {self.failed} failed, {self.duplicates} duplicates"
        return f"{self.env}: {counts}; success of those played {success}"


@dataclass(frozen=True, slots=True)
class Card:
    """The data card."""

    worlds: tuple[Share, ...]
    """Of each world, in the order in which they were played."""
    total: Share
    settings: Mapping[str, Any]
    """What was asked for, as JSON values."""
    versions: Mapping[str, str]
    """Of what the episodes may depend on."""
    command: Sequence[str]
    """What made the collection, or ended its making."""
    git: Mapping[str, Any] | None
    """The commit it was made with, see `provenance`."""
    usage: Mapping[str, Any] | None
    """Requests and tokens, and their cost where the price is known, of a player that is paid by the token."""

    def to_dict(self) -> dict[str, Any]:
        """The card as JSON values, under its schema's name."""
        return {"schema": SCHEMA, "episode_schema": EPISODE_SCHEMA, **asdict(self)}


def make_card(
    played: Iterable[Episode],
    keep: Callable[[Episode], bool],
    settings: Mapping[str, Any],
    usage: Mapping[str, Any] | None = None,
) -> Card:
    """The card of a collection.

    Args:
        played: All its episodes, of which there is at least one.
        keep: Which of them are data.
        settings: How they were made, as JSON values.
        usage: What was used to make them, as JSON values.
    """
    everything = list(played)
    worlds: dict[str, list[Episode]] = defaultdict(list)
    for episode in everything:
        worlds[episode.env].append(episode)
    shares = tuple(_share(env, some, keep) for env, some in worlds.items())
    made = provenance()
    known = {name: made[name] for name in ("versions", "command", "git")}
    return Card(shares, _share("", everything, keep), settings, usage=usage, **known)


def _share(env: str, played: Sequence[Episode], keep: Callable[[Episode], bool]) -> Share:
    kept = [episode for episode in played if keep(episode)]
    scored = [episode for episode in played if not episode.failed]
    return Share(
        env=env,
        played=len(played),
        failed=len(played) - len(scored),
        kept=len(kept),
        kept_share=len(kept) / len(played),
        tasks=len({(episode.env, episode.task_id) for episode in kept}),
        duplicates=len(kept) - len({seen_and_said(episode) for episode in kept}),
        success=_mean(kept, lambda episode: episode.success is True),
        success_played=_mean(scored, lambda episode: episode.success is True),
        score=_mean(kept, lambda episode: episode.score or 0.0),
        score_played=_mean(scored, lambda episode: episode.score or 0.0),
        lengths=Lengths(
            actions=Spread.of([episode.acts for episode in kept]),
            turns=Spread.of([len(episode.turns) for episode in kept]),
            said=Spread.of([_said(episode) for episode in kept]),
            characters=Spread.of([_said(episode) + _shown(episode) for episode in kept]),
        ),
        splits=_counted(episode.split for episode in kept),
        policies=_counted(episode.policy for episode in kept),
        agents=_counted(episode.agent for episode in kept),
        categories=_counted(episode.category for episode in kept),
        stops=_counted(episode.stop for episode in kept),
        kinds=_counted(turn.kind for episode in kept for turn in episode.turns),
    )


def _mean(episodes: Sequence[Episode], figure: Callable[[Episode], float]) -> float | None:
    return fmean(map(figure, episodes)) if episodes else None


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _said(episode: Episode) -> int:
    return sum(len(turn.reply.text) for turn in episode.turns)


def _shown(episode: Episode) -> int:
    new = [
        turn.observation
        for before, turn in zip((None, *episode.turns), episode.turns, strict=False)
        if _is_new(before, turn)
    ]
    last = "" if episode.stop == "length" else episode.final_observation  # half a reply leads to no observation
    return len(episode.instructions) + sum(map(len, new)) + len(last)


def _is_new(before: Turn | None, turn: Turn) -> bool:
    """Whether the observation is another than the one before, on which the agent has planned or looked back."""
    return before is None or before.kind == "act" or before.observation != turn.observation


def seen_and_said(episode: Episode) -> tuple[Any, ...]:
    """What makes an episode a duplicate of another of the same task."""
    said = tuple((turn.observation, turn.reply.text) for turn in episode.turns)
    return episode.env, episode.task_id, episode.instructions, said, episode.final_observation
