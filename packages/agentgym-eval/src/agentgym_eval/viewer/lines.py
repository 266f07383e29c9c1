"""What makes a line of a file an episode: everything that a page counts, sorts or adds up has its type."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, cast, get_args

from agentgym_envs import Episode, Reply, Turn
from agentgym_envs.episode import SCHEMA, Kind, Sample, StopReason

_LARGEST = 2**63 - 1
"""Integer that SQLite knows."""


def read_line(line: bytes) -> dict[str, Any] | None:
    """The episode's JSON; None where the line is damaged, which any wrong field makes it."""
    try:
        record = json.loads(line.decode("utf-8-sig"))
        if record["schema"] != SCHEMA:
            Episode.from_json(json.dumps(record))  # an older one, or nothing that is known
        else:
            _same_names(record, _EPISODE_NAMES)
            _check(record, _EPISODE_SINCE_2)
        _check(record, _EPISODE)
        for turn in record["turns"]:
            _check_turn(turn, whole=record["schema"] == SCHEMA)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    return record


def _check_turn(turn: dict[str, Any], *, whole: bool) -> None:
    _check(turn, _TURN)
    _check(turn["reply"], _REPLY)
    if whole:
        _same_names(turn, _TURN_NAMES)
        _same_names(turn["reply"], _REPLY_NAMES)
        _check(turn, _TURN_SINCE_2)
    if (sample := turn["reply"]["sample"]) is not None:
        _same_names(sample, _SAMPLE_NAMES)
        _check(sample, _SAMPLE)
        if len(sample["ids"]) != len(sample["logprobs"]):
            raise ValueError("logprobs")


def _check(record: Mapping[str, Any], types: Mapping[str, Callable[[Any], bool]]) -> None:
    for name, is_right in types.items():
        if not is_right(record[name]):
            raise ValueError(name)


def _same_names(record: Mapping[str, Any], names: set[str]) -> None:
    if set(record) != names:
        raise ValueError("names")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_name(value: Any) -> bool:
    """Text that a file or an address can hold: no half of a surrogate pair."""
    return isinstance(value, str) and bool(value.encode())


def _is_label(value: Any) -> bool:
    return value == "" or _is_name(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _is_list_of(value: Any, *types: type) -> bool:
    return isinstance(value, list) and set(map(type, cast("list[Any]", value))) <= set(types)


_EPISODE: dict[str, Callable[[Any], bool]] = {
    "env": _is_name,
    "task_id": _is_name,
    "split": _is_label,
    "category": _is_label,
    "difficulty": _is_whole,
    "policy": _is_label,
    "sample": _is_whole,
    "instructions": _is_text,
    "turns": lambda value: isinstance(value, list),
    "final_observation": _is_text,
    "stop": lambda value: value in get_args(StopReason),
    "score": lambda value: value is None or _is_number(value),
    "success": lambda value: value is None or _is_truth(value),
    "error": lambda value: value is None or _is_text(value),
    "seconds": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
}
_EPISODE_SINCE_2: dict[str, Callable[[Any], bool]] = {
    "agent": _is_text,
    "tools": lambda value: _is_list_of(value, dict),
}
_TURN: dict[str, Callable[[Any], bool]] = {
    "observation": _is_text,
    "action": lambda value: value is None or _is_text(value),
    "valid": _is_truth,
    "reward": _is_number,
}
_TURN_SINCE_2: dict[str, Callable[[Any], bool]] = {
    "kind": lambda value: value in get_args(Kind),
    "trial": _is_whole,
    "loss": _is_truth,
}
_REPLY: dict[str, Callable[[Any], bool]] = {
    "text": _is_text,
    "finish": lambda value: value in ("stop", "length"),
}
_SAMPLE: dict[str, Callable[[Any], bool]] = {
    "prompt": lambda value: _is_list_of(value, int),
    "ids": lambda value: _is_list_of(value, int),
    "logprobs": lambda value: _is_list_of(value, float, int),
    "version": _is_whole,
    "fresh": _is_truth,
}
_EPISODE_NAMES = {each.name for each in fields(Episode)} | {"schema"}
_TURN_NAMES, _REPLY_NAMES, _SAMPLE_NAMES = ({each.name for each in fields(noun)} for noun in (Turn, Reply, Sample))
