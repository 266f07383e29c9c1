"""Pairs of episodes of which one did better, for learning from preferences. Knows neither models nor tokens.

Two episodes of a task can be compared where they share a beginning: up to the turn in which, given the same
conversation, the agent said something else. What was said from there on is what made the difference.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from agentgym_envs import Episode

from agentgym_eval.data.contexts import context_messages
from agentgym_eval.data.pairing import Pairing
from agentgym_eval.data.trl import messages_of


@dataclass(frozen=True, slots=True)
class Pair:
    """Two episodes of one task, of the same agent."""

    chosen: Episode
    """The one with the higher score."""
    rejected: Episode
    shared: int
    """How many turns they have in common; what was said from there on is compared."""

    @property
    def gap(self) -> float:
        """By how much the one's score is above the other's."""
        return _score(self.chosen) - _score(self.rejected)

    def compared(self) -> tuple[Episode, Episode]:
        """Chosen and rejected, the shared turns marked as nothing to learn from."""
        return _from(self.chosen, self.shared), _from(self.rejected, self.shared)


def divergence(one: Episode, other: Episode) -> int | None:
    """How many turns two episodes of one agent share until it says something else.

    Returns:
        None when that never happens: they are the same as far as both go, or the world showed something else first.
    """
    for number, (a, b) in enumerate(zip(one.turns, other.turns, strict=False)):
        if a.observation != b.observation:
            return None
        if a.reply.text != b.reply.text:
            return number
    return None


def make_pairs(episodes: Iterable[Episode], pairing: Pairing) -> list[Pair]:
    """Pair up episodes of the same task by their scores.

    Within a task, pairs of episodes that were compared least so far come first, among those the ones with the larger
    gap, and among those chance decides.

    Args:
        episodes: Of any tasks, worlds and agents. Failed ones are passed over, and those that say the same as another.
        pairing: Says which pairs, and how many.
    """
    rng = np.random.default_rng(pairing.seed)
    made = (_pairs(group, pairing) for group in _comparable(episodes))
    return [_cut(pair, pairing) for some in made for pair in _deal(some, most=pairing.most, rng=rng)]


def to_trl(pair: Pair) -> dict[str, Any]:
    """The pair in TRL's conversational preference format: `prompt`, `chosen` and `rejected` are lists of messages.

    Chosen and rejected hold what the world answered as well; where an agent begins its conversation anew they end.
    Beside them stand the task, both scores and, for agents that call functions, `tools` as JSON.
    """
    prompt, chosen = _parted(pair.chosen, pair.shared)
    _, rejected = _parted(pair.rejected, pair.shared)
    record: dict[str, Any] = {
        "prompt": prompt,
        "chosen": chosen,
        "rejected": rejected,
        "env": pair.chosen.env,
        "task_id": pair.chosen.task_id,
        "agent": pair.chosen.agent,
        "score_chosen": pair.chosen.score,
        "score_rejected": pair.rejected.score,
    }
    return record | ({"tools": json.dumps(pair.chosen.tools)} if pair.chosen.tools else {})


def _score(episode: Episode) -> float:
    assert episode.score is not None
    return episode.score


def _from(episode: Episode, start: int) -> Episode:
    turns = (replace(turn, loss=turn.loss and number >= start) for number, turn in enumerate(episode.turns))
    return replace(episode, turns=tuple(turns))


def _comparable(episodes: Iterable[Episode]) -> list[list[Episode]]:
    """Scored episodes by task and agent, each once. Two that say the same are one."""
    groups: dict[tuple[str, ...], dict[tuple[Any, ...], Episode]] = {}
    for episode in episodes:
        if not episode.failed and episode.turns:
            key = (episode.env, episode.task_id, episode.agent, episode.instructions, episode.turns[0].observation)
            said = tuple((turn.observation, turn.reply.text) for turn in episode.turns)
            groups.setdefault(key, {}).setdefault(said, episode)
    return [list(group.values()) for group in groups.values()]


def _pairs(group: Sequence[Episode], pairing: Pairing) -> list[Pair]:
    """All that can be made, the larger gaps first."""
    ranked = sorted(group, key=_score, reverse=True)
    made = [Pair(a, b, shared) for a, b in combinations(ranked, 2) if (shared := divergence(a, b)) is not None]
    # Scores are sums of rewards: 0.1 + 0.2 is as far from 0 as 0.3.
    told = [pair for pair in made if pair.gap >= pairing.min_gap - 1e-9]
    return [pair for pair in told if pairing.truncated != "drop" or pair.rejected.stop != "truncated"]


def _cut(pair: Pair, pairing: Pairing) -> Pair:
    """The pair without the turns that aren't to be compared."""
    chosen, rejected = len(pair.chosen.turns), len(pair.rejected.turns)
    if pairing.truncated == "shorten" and pair.rejected.stop == "truncated":
        rejected = min(chosen, rejected)
    if pairing.turns:
        chosen, rejected = (min(end, pair.shared + pairing.turns) for end in (chosen, rejected))
    return replace(pair, chosen=_first(pair.chosen, chosen), rejected=_first(pair.rejected, rejected))


def _first(episode: Episode, turns: int) -> Episode:
    return replace(episode, turns=episode.turns[:turns])


def _deal(pairs: Sequence[Pair], *, most: int, rng: np.random.Generator) -> list[Pair]:
    drawn: list[int] = rng.permutation(len(pairs)).tolist()
    left = sorted((pairs[i] for i in drawn), key=lambda pair: -pair.gap)
    uses, dealt = Counter[int](), list[Pair]()
    while left and len(dealt) < most:
        at = min(range(len(left)), key=lambda i: uses[id(left[i].chosen)] + uses[id(left[i].rejected)])
        dealt.append(left.pop(at))
        uses.update((id(dealt[-1].chosen), id(dealt[-1].rejected)))
    return dealt


def _parted(episode: Episode, number: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The messages before the reply of a turn, and those from there on."""
    before = 0
    for stretch in context_messages(episode):
        replies = list(stretch.turns)
        if number < before + len(replies):
            messages = messages_of(stretch.messages, calls=bool(episode.tools))
            return messages[: replies[number - before]], messages[replies[number - before] :]
        before += len(replies)
    raise ValueError(f"The episode of {episode.task_id} has no turn {number}.")
