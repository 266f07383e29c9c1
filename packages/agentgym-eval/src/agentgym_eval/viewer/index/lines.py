"""Validation of one line of an episode file: it must parse as an episode, and the index must be able to store it.

An index reads each line once, so parsing decides its speed. Lines of the current schema are decoded by msgspec, in a
fraction of the time of `Episode.from_json`; every line that msgspec rejects is left to `Episode.from_json` to decide.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import fields
from typing import Any, get_type_hints

import msgspec
from agentgym_envs import Episode, Reply, Sample, Turn
from agentgym_envs.episodes.episode import SCHEMA, TokenUsage

_MAX_INTEGER = 2**63 - 1
"""The largest SQLite integer."""


def _struct(cls: type[Any], optional: frozenset[str] = frozenset(), **nested: Any) -> type[msgspec.Struct]:
    """Make a msgspec type with the fields and properties of a dataclass, which only accepts objects with its keys.

    msgspec decodes it in a quarter of the time that it takes for the dataclass, and for a dataclass it ignores unknown
    keys, and missing ones that have a default.

    Args:
        cls: The dataclass.
        optional: Fields whose key may be missing.
        nested: Types of fields, instead of those of the dataclass.
    """
    types = get_type_hints(cls) | nested
    required = [(each.name, types[each.name]) for each in fields(cls) if each.name not in optional]
    may_be_missing = [(each.name, types[each.name], each.default) for each in fields(cls) if each.name in optional]
    return msgspec.defstruct(
        f"{cls.__name__}Line",
        [*([("schema", str)] if cls is Episode else []), *required, *may_be_missing],
        namespace={name: value for name, value in vars(cls).items() if isinstance(value, property)},
        forbid_unknown_fields=True,
        frozen=True,
        gc=False,
    )


_REPLY = _struct(
    Reply,
    frozenset(each.name for each in fields(Reply)) - {"text", "finish", "sample"},
    sample=_struct(Sample, frozenset({"versions"})) | None,
    usage=_struct(TokenUsage) | None,
)
_TURN = _struct(Turn, frozenset({"picture"}), reply=_REPLY)
_EPISODE = msgspec.json.Decoder(_struct(Episode, frozenset({"cluster", "final_picture"}), turns=tuple[_TURN, ...]))


def read_line(line: bytes) -> Episode | None:
    """Return an object with the fields and properties of the episode, down to its samples, to read them only; None if
    the line is damaged, which any invalid field makes it.
    """
    with suppress(ValueError, TypeError, KeyError, OverflowError):
        episode = _decode(line) or Episode.from_json(line.decode("utf-8-sig"))
        if _can_index(episode) and _can_show(episode):
            return episode
    return None


def _decode(line: bytes) -> Episode | None:
    """Decode a line as `Episode.from_json` does; None if it may be damaged, or only `from_json` can read it."""
    try:
        episode: Any = _EPISODE.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    scored = episode.stop == "failed" or (episode.score is not None and episode.success is not None)
    samples = [turn.reply.sample for turn in episode.turns if turn.reply.sample]
    right_versions = all(not each.versions or len(each.versions) == len(each.ids) for each in samples)
    return episode if episode.schema == SCHEMA and scored and right_versions else None


def _can_index(episode: Episode) -> bool:
    """Return whether the episode has a task, and SQLite can store its integers."""
    integers = (episode.difficulty, episode.sample)
    return bool(episode.task_id) and all(abs(number) <= _MAX_INTEGER for number in integers)


def _can_show(episode: Episode) -> bool:
    """Return whether all numbers are finite, the score is in [0, 1], and every sample has one log-probability per token
    id.
    """
    numbers = (*episode.seconds.values(), *(turn.reward for turn in episode.turns))
    samples = (turn.reply.sample for turn in episode.turns)
    return (
        (episode.score is None or 0 <= episode.score <= 1)
        and all(map(math.isfinite, numbers))
        and all(len(sample.ids) == len(sample.logprobs) for sample in samples if sample)
    )
