"""Statistics of a collection of episodes: its data card as JSON values."""

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
    """The distribution of a length over episodes."""

    least: float
    median: float
    mean: float
    most: float

    @classmethod
    def of(cls, values: Sequence[int]) -> Spread | None:
        """Return the distribution of `values`; None without values."""
        return cls(min(values), median(values), fmean(values), max(values)) if values else None


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of the kept episodes; None without kept episodes."""

    actions: Spread | None
    """Number of replies that are actions."""
    turns: Spread | None
    """Number of replies of any kind: actions, plans, reflections, summaries."""
    said: Spread | None
    """Number of characters in the replies."""
    characters: Spread | None
    """Number of characters in the instructions, observations and replies, each counted once."""


@dataclass(frozen=True, slots=True)
class Share:
    """Statistics of the episodes of one environment, or of all. Means are over episodes; reports also have
    intervals.
    """

    env: str
    """Gymnasium id of the environment; empty for all."""
    played: int
    failed: int
    """Number of episodes that broke for reasons other than the policy. They are never kept, and only counted here
    and in `played`."""
    kept: int
    kept_share: float
    """Share of the played episodes that were kept."""
    tasks: int
    """Number of distinct tasks among the kept episodes."""
    duplicates: int
    """Number of kept episodes with the same observations and replies as an earlier one of the same task."""
    success: float | None
    """Success rate of the kept episodes; None without kept episodes."""
    success_played: float | None
    """Success rate of all episodes that did not fail: the policy's performance."""
    score: float | None
    """Mean score of the kept episodes."""
    score_played: float | None
    """Mean score of all episodes that did not fail."""
    lengths: Lengths
    splits: Mapping[str, int]
    """Number of kept episodes by split. The fields below count them by policy, agent, category and stop reason, and
    their turns by kind."""
    policies: Mapping[str, int]
    agents: Mapping[str, int]
    categories: Mapping[str, int]
    stops: Mapping[str, int]
    kinds: Mapping[str, int]

    @property
    def summary(self) -> str:
        """A one-line summary for the terminal."""
        success = "-" if self.success_played is None else f"{self.success_played:.1%}"
        counts = f"kept {self.kept} of {self.played} played, {self.failed} failed, {self.duplicates} duplicates"
        return f"{self.env}: {counts}; success rate of played episodes {success}"


@dataclass(frozen=True, slots=True)
class Card:
    """The data card."""

    worlds: tuple[Share, ...]
    """Statistics of each environment, in the order in which they were played."""
    total: Share
    settings: Mapping[str, Any]
    """Settings of the collection as JSON values."""
    versions: Mapping[str, str]
    """Versions of packages that the episodes may depend on."""
    command: Sequence[str]
    """The command that made the collection, or finished it."""
    git: Mapping[str, Any] | None
    """State of the git repository, see `provenance`."""
    usage: Mapping[str, Any] | None
    """Requests, tokens and, if the price is known, cost of a paid endpoint."""

    def to_dict(self) -> dict[str, Any]:
        """Return the card as JSON values, with its schema."""
        return {"schema": SCHEMA, "episode_schema": EPISODE_SCHEMA, **asdict(self)}


def make_card(
    played: Iterable[Episode],
    keep: Callable[[Episode], bool],
    settings: Mapping[str, Any],
    usage: Mapping[str, Any] | None = None,
) -> Card:
    """Compute the card of a collection.

    Args:
        played: All its episodes, at least one.
        keep: Returns whether an episode is kept.
        settings: Settings of the collection as JSON values.
        usage: Usage of a paid endpoint as JSON values.
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
        duplicates=len(kept) - len({duplicate_key(episode) for episode in kept}),
        success=_mean(kept, lambda episode: episode.success is True),
        success_played=_mean(scored, lambda episode: episode.success is True),
        score=_mean(kept, lambda episode: episode.score or 0.0),
        score_played=_mean(scored, lambda episode: episode.score or 0.0),
        lengths=Lengths(
            actions=Spread.of([episode.acts for episode in kept]),
            turns=Spread.of([len(episode.turns) for episode in kept]),
            said=Spread.of([_reply_characters(episode) for episode in kept]),
            characters=Spread.of([_reply_characters(episode) + _input_characters(episode) for episode in kept]),
        ),
        splits=_counted(episode.split for episode in kept),
        policies=_counted(episode.policy for episode in kept),
        agents=_counted(episode.agent for episode in kept),
        categories=_counted(episode.category for episode in kept),
        stops=_counted(episode.stop for episode in kept),
        kinds=_counted(turn.kind for episode in kept for turn in episode.turns),
    )


def _mean(episodes: Sequence[Episode], metric: Callable[[Episode], float]) -> float | None:
    return fmean(map(metric, episodes)) if episodes else None


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _reply_characters(episode: Episode) -> int:
    return sum(len(turn.reply.text) for turn in episode.turns)


def _input_characters(episode: Episode) -> int:
    new = [
        turn.observation
        for before, turn in zip((None, *episode.turns), episode.turns, strict=False)
        if _is_new(before, turn)
    ]
    last = "" if episode.stop == "length" else episode.final_observation  # a truncated reply leads to no observation
    return len(episode.instructions) + sum(map(len, new)) + len(last)


def _is_new(before: Turn | None, turn: Turn) -> bool:
    """Return whether a turn has a new observation: after turns other than actions, the observation may be repeated."""
    return before is None or before.kind == "act" or before.observation != turn.observation


def duplicate_key(episode: Episode) -> tuple[Any, ...]:
    """Return the key by which episodes of the same task are duplicates: all observations and replies."""
    turns = tuple((turn.observation, turn.reply.text) for turn in episode.turns)
    return episode.env, episode.task_id, episode.instructions, turns, episode.final_observation
