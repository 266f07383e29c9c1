"""Validation of one line of an episode file: it must parse as an episode, and the index must be able to store it.

An index reads each line once, so parsing decides its speed. Lines of the current schema are decoded by msgspec, in a
tenth of the time of `Episode.from_json`; every line that msgspec rejects is left to `Episode.from_json` to decide.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import fields
from typing import Any

import msgspec
from agentgym_envs import Episode, Reply, Sample, Turn
from agentgym_envs.episodes.episode import SCHEMA, TokenUsage

_MAX_INTEGER = 2**63 - 1
"""The largest SQLite integer."""


def _keys(cls: type[Any], optional: frozenset[str] = frozenset(), **nested: Any) -> type[msgspec.Struct]:
    """Make a type that accepts objects with exactly the keys of a dataclass; only values of `nested` are decoded."""
    keys = [(each.name, nested.get(each.name, msgspec.Raw)) for each in fields(cls)]
    required = [(name, kind) for name, kind in keys if name not in optional]
    may_be_missing = [(name, kind, msgspec.field(default=None)) for name, kind in keys if name in optional]
    schema = [("schema", msgspec.Raw)] if cls is Episode else []
    return msgspec.defstruct(
        f"{cls.__name__}Keys", [*schema, *required, *may_be_missing], forbid_unknown_fields=True, gc=False
    )


_REPLY_KEYS = _keys(
    Reply,
    frozenset(each.name for each in fields(Reply)) - {"text", "finish", "sample"},
    sample=_keys(Sample, frozenset({"versions"})) | None,
    usage=_keys(TokenUsage) | None,
)
_TURN_KEYS = _keys(Turn, frozenset({"picture"}), reply=_REPLY_KEYS)
_KEYS = msgspec.json.Decoder(_keys(Episode, frozenset({"cluster", "final_picture"}), turns=list[_TURN_KEYS]))
"""Decoder that checks the keys, since msgspec ignores unknown keys of dataclasses, and missing ones with defaults."""
_EPISODE = msgspec.json.Decoder(Episode)
_SCHEMA = f'"{SCHEMA}"'.encode()


def read_line(line: bytes) -> Episode | None:
    """Return the episode; None if the line is damaged, which any invalid field makes it."""
    with suppress(ValueError, TypeError, KeyError, OverflowError):
        episode = _decode(line) or Episode.from_json(line.decode("utf-8-sig"))
        if _can_index(episode) and _can_show(episode):
            return episode
    return None


def _decode(line: bytes) -> Episode | None:
    """Decode a line as `Episode.from_json` does; None if it may be damaged, or only `from_json` can read it."""
    try:
        keys: Any = _KEYS.decode(line)
        episode = _EPISODE.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    scored = episode.stop == "failed" or (episode.score is not None and episode.success is not None)
    samples = [turn.reply.sample for turn in episode.turns if turn.reply.sample]
    right_versions = all(not each.versions or len(each.versions) == len(each.ids) for each in samples)
    return episode if bytes(keys.schema) == _SCHEMA and scored and right_versions else None


def _can_index(episode: Episode) -> bool:
    """Return whether the episode has a name, and SQLite can store its integers."""
    integers = (episode.difficulty, episode.sample)
    return bool(episode.env and episode.task_id) and all(abs(number) <= _MAX_INTEGER for number in integers)


def _can_show(episode: Episode) -> bool:
    """Return whether all numbers are finite and every sample has one log-probability per token id."""
    numbers = (episode.score or 0, *episode.seconds.values(), *(turn.reward for turn in episode.turns))
    samples = (turn.reply.sample for turn in episode.turns)
    return all(map(math.isfinite, numbers)) and all(
        len(sample.ids) == len(sample.logprobs) for sample in samples if sample
    )
