"""The tokens of an episode as they were trained on: what was said, how likely it was, what it was credited with.

Comes from the file `*.tokens.jsonl` (schema `agentgym.tokens/1`) beside the episodes of a training step; else from the
ids in the episode's own samples, with the texts that the run's `tokenizer.json` has for them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from agentgym_envs import Episode, Sample

from agentgym_eval.viewer.index.vocabulary import Vocabulary, find_vocabulary

SCHEMA = "agentgym.tokens/1"
_HEAD = re.compile(rb'\{"schema": ?"agentgym\.tokens/1", ?"episode": ?(\d{1,15}),')
_LEVELS = 6
_MOST = 20_000
"""Tokens on a page; what comes behind them is counted."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token."""

    text: str
    said: bool
    """Whether the agent said it, so that it is trained on; else it was read."""
    turn: int
    """Which said it; -1 where none did."""
    logprob: float | None = None
    """Under the policy that sampled it, in nats; None where it isn't said or known, and so the others."""
    advantage: float | None = None
    entropy: float | None = None
    """Of the distribution that it was drawn from, in nats."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of an episode."""

    segments: tuple[tuple[Token, ...], ...] = ()
    """A new one begins where a context couldn't be extended by appending."""
    trained: bool | None = None
    """Whether its group was trained on; None where nobody says."""
    group: int | None = None
    strings: bool = True
    """Whether `text` is what the token says, and not its number."""
    left_out: int = 0
    """Tokens beyond those that fit on a page."""

    @property
    def knows(self) -> tuple[str, ...]:
        """Which figures there are, in the order in which they are of interest."""
        every = [token for segment in self.segments for token in segment]
        names = ("logprob", "advantage", "entropy")
        return tuple(name for name in names if any(getattr(token, name) is not None for token in every))

    @property
    def said(self) -> int:
        """How many the agent said."""
        return sum(token.said for segment in self.segments for token in segment)

    def scale(self) -> float:
        """The largest advantage either way, by which colours are measured."""
        advantages = [abs(t.advantage) for segment in self.segments for t in segment if t.advantage is not None]
        return max(advantages, default=0.0)


def tokens_file(episodes: Path) -> Path:
    """Where the tokens of a file of episodes are kept, if they are."""
    return episodes.with_suffix(".tokens.jsonl")


def kept_episodes(path: Path) -> list[int]:
    """The numbers of the episodes whose tokens a tokens file holds, by the beginnings of its lines."""
    try:
        with path.open("rb") as lines:
            return [int(found[1]) for line in lines if (found := _HEAD.match(line))]
    except OSError:
        return []  # gone, or not ours to read


def read_tokens(episodes: Path, number: int, episode: Episode, folder: Path) -> Tokens:
    """The tokens of the episode on line `number` of the file `episodes`; none where nothing was kept of them.

    Args:
        episodes: The file.
        number: The episode's line, from 0.
        episode: The episode itself.
        folder: Of its run, whose tokenizer says what ids stand for.
    """
    path = tokens_file(episodes)
    for record in _records(path, number, episode) if path.exists() else ():
        try:
            segments = [list(_segment(segment)) for segment in record["segments"]]
            return _bounded(segments, Tokens(trained=record.get("trained"), group=record.get("group")))
        except (KeyError, TypeError, ValueError):
            break  # damaged, or just being written anew: the ids may do
    sampled = list(_sampled(episode))
    vocabulary = find_vocabulary(folder) if sampled else None
    segments = [list(_written(samples, vocabulary)) for samples in sampled]
    return _bounded(segments, Tokens(strings=vocabulary is not None))


def _records(path: Path, number: int, episode: Episode) -> Iterator[dict[str, Any]]:
    """The lines of this episode. Most lines are of others, and long."""
    mark = json.dumps(episode.task_id, ensure_ascii=False)
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if mark not in line and json.dumps(episode.task_id) not in line:
                continue
            try:
                record = json.loads(line)
            except ValueError:
                continue
            keys = (record.get("schema"), record.get("episode"), record.get("task_id"))
            if keys == (SCHEMA, number, episode.task_id):
                yield record


def _segment(record: dict[str, Any]) -> Iterator[Token]:
    """Raises KeyError, TypeError or ValueError when the columns aren't of one length."""
    names = ("tokens", "loss_mask", "turn", "logprobs", "advantages", "entropies")
    for text, said, turn, *figures in zip(*(record[name] for name in names), strict=True):
        yield Token(str(text), bool(said), int(turn), *(None if one is None else float(one) for one in figures))


def _sampled(episode: Episode) -> Iterator[list[tuple[int, Sample]]]:
    """The samples of each segment, each with its turn."""
    segment: list[tuple[int, Sample]] = []
    for number, turn in enumerate(episode.turns):
        sample = turn.reply.sample
        if sample is None:
            continue
        if sample.fresh and segment:
            yield segment
            segment = []
        segment.append((number, sample))
    if segment:
        yield segment


def _written(samples: Sequence[tuple[int, Sample]], vocabulary: Vocabulary | None) -> Iterator[Token]:
    """The tokens of a segment; without a vocabulary their ids."""
    ids = [number for _, sample in samples for number in (*sample.prompt, *sample.ids)]
    texts = iter(vocabulary.texts(ids) if vocabulary else map(str, ids))
    for turn, sample in samples:
        yield from (Token(next(texts), False, -1) for _ in sample.prompt)
        yield from (Token(next(texts), True, turn, logprob) for logprob in sample.logprobs)


def _bounded(segments: Sequence[Sequence[Token]], known: Tokens) -> Tokens:
    kept: list[tuple[Token, ...]] = []
    room = _MOST
    for segment in segments:
        kept += [tuple(segment[:room])] if room > 0 else []
        room -= len(segment)
    return Tokens(tuple(kept), known.trained, known.group, known.strings, max(0, -room))


def colours(token: Token, scale: float) -> str:
    """The classes of a token: `p0` likely to `p5` unlikely, `h0` to `h5` by entropy, `a_5` to `a5` by advantage
    against the largest; an underscore is a minus.
    """
    if not token.said:
        return "read"
    classes = ["said"]
    if token.logprob is not None:  # halved each time: 1 to 0.7, to 0.5, to 0.25, to 0.06, to 0.004, below
        classes.append(f"p{sum(-token.logprob > nats for nats in (0.35, 0.7, 1.4, 2.8, 5.6))}")
    if token.entropy is not None:
        classes.append(f"h{min(_LEVELS - 1, max(0, math.floor(2 * token.entropy)))}")
    if token.advantage is not None:
        level = round((_LEVELS - 1) * token.advantage / scale) if scale else 0
        classes.append(f"a{level}".replace("-", "_"))
    return " ".join(classes)


def stretches(segment: Sequence[Token]) -> list[list[Token]]:
    """The tokens that stand together and were all said, or all read."""
    return [list(stretch) for _, stretch in groupby(segment, key=lambda token: token.said)]


def told(token: Token) -> str:
    """The figures of a said token in words."""
    parts = [f"turn {token.turn}"]
    if token.logprob is not None:
        parts.append(f"log-probability {token.logprob:.3f} (p = {math.exp(token.logprob):.3f})")
    if token.advantage is not None:
        parts.append(f"advantage {token.advantage:+.3f}")
    if token.entropy is not None:
        parts.append(f"entropy {token.entropy:.3f}")
    return ", ".join(parts)
