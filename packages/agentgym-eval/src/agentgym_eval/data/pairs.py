"""Pairs of a better and a worse episode, for preference learning.

Two episodes of a task are comparable if they share a prefix: up to the turn in which the agent replied differently to
the same conversation. The replies from there on are compared.
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
    """Two episodes of the same task and agent."""

    chosen: Episode
    """The episode with the higher score."""
    rejected: Episode
    shared: int
    """Number of leading turns that both share; the replies after them are compared."""

    @property
    def gap(self) -> float:
        """Difference of the two scores."""
        return _score(self.chosen) - _score(self.rejected)

    def compared(self) -> tuple[Episode, Episode]:
        """Return the chosen and the rejected episode with the shared turns excluded from the loss."""
        return _from(self.chosen, self.shared), _from(self.rejected, self.shared)


def divergence(one: Episode, other: Episode) -> int | None:
    """Return the number of turns that two episodes of one agent share before a different reply.

    Returns:
        None if that never happens: one episode is a prefix of the other, or the observations differ first.
    """
    for number, (a, b) in enumerate(zip(one.turns, other.turns, strict=False)):
        if a.observation != b.observation:
            return None
        if a.reply.text != b.reply.text:
            return number
    return None


def make_pairs(episodes: Iterable[Episode], pairing: Pairing) -> list[Pair]:
    """Pair up episodes of the same task by their scores.

    Within a task, pairs are chosen by how little their episodes have been used so far, then by the larger gap, then at
    random.

    Args:
        episodes: Episodes of any tasks, environments and agents. Failed and duplicate episodes are ignored.
        pairing: Settings of the pairs.
    """
    rng = np.random.default_rng(pairing.seed)
    made: dict[tuple[str, str], list[Pair]] = {}
    for group in _comparable(episodes):
        made.setdefault((group[0].env, group[0].task_id), []).extend(_pairs(group, pairing))
    return [_cut(pair, pairing) for some in made.values() for pair in _select(some, most=pairing.most, rng=rng)]


def to_trl(pair: Pair) -> dict[str, Any]:
    """Return the pair in TRL's conversational preference format: `prompt`, `chosen` and `rejected` are lists of
    messages.

    Chosen and rejected include the environment's observations and end where the agent starts a new context. The record
    also has the task, both scores and, for function-calling agents, `tools` as JSON.
    """
    prompt, chosen = _split_messages(pair.chosen, pair.shared)
    _, rejected = _split_messages(pair.rejected, pair.shared)
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
    """Group scored episodes by task, agent and beginning, without duplicates."""
    groups: dict[tuple[str, ...], dict[tuple[Any, ...], Episode]] = {}
    for episode in episodes:
        if not episode.failed and episode.turns:
            key = (episode.env, episode.task_id, episode.agent, episode.instructions, episode.turns[0].observation)
            turns = tuple((turn.observation, turn.reply.text) for turn in episode.turns)
            groups.setdefault(key, {}).setdefault(turns, episode)
    return [list(group.values()) for group in groups.values()]


def _pairs(group: Sequence[Episode], pairing: Pairing) -> list[Pair]:
    """Return all possible pairs, ordered by the scores of their episodes."""
    ranked = sorted(group, key=_score, reverse=True)
    made = [Pair(a, b, shared) for a, b in combinations(ranked, 2) if (shared := divergence(a, b)) is not None]
    # The tolerance is for scores that are sums of rewards, such as 0.1 + 0.2.
    wide = [pair for pair in made if pair.gap >= pairing.min_gap - 1e-9]
    return [pair for pair in wide if pairing.truncated != "drop" or pair.rejected.stop != "truncated"]


def _cut(pair: Pair, pairing: Pairing) -> Pair:
    """Remove the turns that aren't compared."""
    chosen, rejected = len(pair.chosen.turns), len(pair.rejected.turns)
    if pairing.truncated == "shorten" and pair.rejected.stop == "truncated":
        rejected = min(chosen, rejected)
    if pairing.turns:
        chosen, rejected = (min(end, pair.shared + pairing.turns) for end in (chosen, rejected))
    return replace(pair, chosen=_first(pair.chosen, chosen), rejected=_first(pair.rejected, rejected))


def _first(episode: Episode, turns: int) -> Episode:
    return replace(episode, turns=episode.turns[:turns])


def _select(pairs: Sequence[Pair], *, most: int, rng: np.random.Generator) -> list[Pair]:
    drawn: list[int] = rng.permutation(len(pairs)).tolist()
    left = sorted((pairs[i] for i in drawn), key=lambda pair: -pair.gap)
    uses, selected = Counter[int](), list[Pair]()
    while left and len(selected) < most:
        at = min(range(len(left)), key=lambda i: uses[id(left[i].chosen)] + uses[id(left[i].rejected)])
        selected.append(left.pop(at))
        uses.update((id(selected[-1].chosen), id(selected[-1].rejected)))
    return selected


def _split_messages(episode: Episode, number: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split an episode's messages before the reply of turn `number`."""
    before = 0
    for context in context_messages(episode):
        replies = list(context.turns)
        if number < before + len(replies):
            messages = messages_of(context.messages, calls=bool(episode.tools))
            return messages[: replies[number - before]], messages[replies[number - before] :]
        before += len(replies)
    raise ValueError(f"The episode of {episode.task_id} has no turn {number}.")
