"""The tokens of an episode as they were trained on, with log-probabilities, advantages and entropies.

They come from the file `*.tokens.jsonl` (schema `agentgym.tokens/2`) next to the episodes of a training step; without
it, from the token ids in the episode's samples, with their texts from the run's vocabulary.
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

SCHEMA = "agentgym.tokens/2"
_HEAD = re.compile(rb'\{"schema": ?"agentgym\.tokens/2", ?"episode": ?(\d{1,15}),')
_LEVELS = 6
_MAX_TOKENS = 20_000
"""Maximum number of tokens on a page; the number of further ones is shown."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token."""

    text: str
    completion: bool
    """Whether it is a completion token, which is trained on; otherwise a prompt token."""
    turn: int
    """The turn whose reply it belongs to; -1 for prompt tokens."""
    logprob: float | None = None
    """Log-probability under the policy that sampled it, in nats; None for prompt tokens and if unknown. This also
    holds for the other metrics.
    """
    advantage: float | None = None
    entropy: float | None = None
    """Entropy of the distribution that it was sampled from, in nats."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of an episode."""

    segments: tuple[tuple[Token, ...], ...] = ()
    """Contexts; a new one begins when the previous one couldn't be extended by appending."""
    trained: bool | None = None
    """Whether its group was trained on; None if unknown."""
    group: int | None = None
    has_text: bool = True
    """Whether `Token.text` is the token's text; otherwise it is its id."""
    omitted: int = 0
    """Number of tokens beyond those that fit on a page."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The available per-token metrics, in display order."""
        tokens = [token for segment in self.segments for token in segment]
        names = ("logprob", "advantage", "entropy")
        return tuple(name for name in names if any(getattr(token, name) is not None for token in tokens))

    @property
    def completion_tokens(self) -> int:
        """The number of completion tokens."""
        return sum(token.completion for segment in self.segments for token in segment)

    def max_advantage(self) -> float:
        """Return the largest absolute advantage, which scales the colours."""
        advantages = [abs(t.advantage) for segment in self.segments for t in segment if t.advantage is not None]
        return max(advantages, default=0.0)


def tokens_file(episodes: Path) -> Path:
    """Return the path of the tokens file that belongs to a file of episodes; it may not exist."""
    return episodes.with_suffix(".tokens.jsonl")


def kept_episodes(path: Path) -> list[int]:
    """Return the numbers of the episodes in a tokens file, parsing only the beginnings of its lines."""
    try:
        with path.open("rb") as lines:
            return [int(match[1]) for line in lines if (match := _HEAD.match(line))]
    except OSError:
        return []  # deleted, or no permission to read


def read_tokens(episodes: Path, number: int, episode: Episode, folder: Path) -> Tokens:
    """Read the tokens of one episode; empty if none were recorded.

    Args:
        episodes: The file of episodes.
        number: The episode's line in it, from 0.
        episode: The episode.
        folder: The folder of its run, whose vocabulary decodes token ids.
    """
    path = tokens_file(episodes)
    for record in _records(path, number, episode) if path.exists() else ():
        try:
            segments = [list(_segment(segment)) for segment in record["segments"]]
            return _limited(segments, Tokens(trained=record.get("trained"), group=record.get("group")))
        except (KeyError, TypeError, ValueError, OverflowError):
            break  # damaged or being rewritten: fall back to the token ids
    sampled = list(_sampled(episode))
    vocabulary = find_vocabulary(folder) if sampled else None
    segments = [list(_decoded(samples, vocabulary)) for samples in sampled]
    return _limited(segments, Tokens(has_text=vocabulary is not None))


def _records(path: Path, number: int, episode: Episode) -> Iterator[dict[str, Any]]:
    """Yield the records of this episode. Lines are long, so those without the task id are not parsed."""
    task_id = json.dumps(episode.task_id, ensure_ascii=False)
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if task_id not in line and json.dumps(episode.task_id) not in line:
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            keys = (record.get("schema"), record.get("episode"), record.get("task_id"))
            if keys == (SCHEMA, number, episode.task_id):
                yield record


def _segment(record: dict[str, Any]) -> Iterator[Token]:
    """Yield the tokens of a segment. Raises KeyError, TypeError, ValueError or OverflowError if columns differ in
    length, or a number isn't finite.
    """
    names = ("tokens", "loss_mask", "turn", "logprobs", "advantages", "entropies")
    for text, completion, turn, *metrics in zip(*(record[name] for name in names), strict=True):
        values = [None if value is None else float(value) for value in metrics]
        if not all(value is None or math.isfinite(value) for value in values):
            raise ValueError("A number of a token isn't finite.")
        yield Token(str(text), bool(completion), int(turn), *values)


def _sampled(episode: Episode) -> Iterator[list[tuple[int, Sample]]]:
    """Yield the samples of each segment, each with its turn."""
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


def _decoded(samples: Sequence[tuple[int, Sample]], vocabulary: Vocabulary | None) -> Iterator[Token]:
    """Yield the tokens of a segment; without a vocabulary, their texts are the ids."""
    ids = [token_id for _, sample in samples for token_id in (*sample.prompt, *sample.ids)]
    texts = iter(vocabulary.texts(ids) if vocabulary else map(str, ids))
    for turn, sample in samples:
        yield from (Token(next(texts), False, -1) for _ in sample.prompt)
        yield from (Token(next(texts), True, turn, logprob) for logprob in sample.logprobs)


def _limited(segments: Sequence[Sequence[Token]], info: Tokens) -> Tokens:
    """Add the segments to `info`, cut to `_MAX_TOKENS`."""
    kept: list[tuple[Token, ...]] = []
    left = _MAX_TOKENS
    for segment in segments:
        kept += [tuple(segment[:left])] if left > 0 else []
        left -= len(segment)
    return Tokens(tuple(kept), info.trained, info.group, info.has_text, max(0, -left))


def css_classes(token: Token, max_advantage: float) -> str:
    """Return the CSS classes of a token.

    They are `p0` (likely) to `p5` (unlikely) by probability, `h0` to `h5` by entropy, and `a_5` to `a5` by advantage
    relative to `max_advantage`, with an underscore as the minus sign.
    """
    if not token.completion:
        return "read"
    classes = ["said"]
    if token.logprob is not None:  # bounds double in nats: p of 0.7, 0.5, 0.25, 0.06, 0.004
        classes.append(f"p{sum(-token.logprob > nats for nats in (0.35, 0.7, 1.4, 2.8, 5.6))}")
    if token.entropy is not None:
        classes.append(f"h{math.floor(min(_LEVELS - 1, max(0.0, 2 * token.entropy)))}")
    if token.advantage is not None:
        level = round((_LEVELS - 1) * (token.advantage / max_advantage)) if max_advantage else 0
        classes.append(f"a{level}".replace("-", "_"))
    return " ".join(classes)


def spans(segment: Sequence[Token]) -> list[list[Token]]:
    """Split a segment into maximal spans of only completion tokens or only prompt tokens."""
    return [list(span) for _, span in groupby(segment, key=lambda token: token.completion)]


def describe(token: Token) -> str:
    """Return the metrics of a completion token as text."""
    parts = [f"turn {token.turn}"]
    if token.logprob is not None:
        parts.append(f"log-probability {token.logprob:.3f} (p = {math.exp(min(token.logprob, 0.0)):.3f})")
    if token.advantage is not None:
        parts.append(f"advantage {token.advantage:+.3f}")
    if token.entropy is not None:
        parts.append(f"entropy {token.entropy:.3f}")
    return ", ".join(parts)
