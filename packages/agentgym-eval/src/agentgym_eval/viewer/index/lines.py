"""Validation of one line of an episode file: it must parse as an episode, and the index must be able to store it."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

from agentgym_envs import Episode

_MAX_INTEGER = 2**63 - 1
"""The largest SQLite integer."""


def read_line(line: bytes) -> tuple[dict[str, Any], Episode] | None:
    """Return the episode's JSON and the episode; None if the line is damaged, which any invalid field makes it."""
    with suppress(ValueError, TypeError, KeyError, OverflowError):
        text = line.decode("utf-8-sig")
        episode = Episode.from_json(text)
        record = json.loads(text)
        if _can_index(record) and _can_show(episode):
            return record, episode
    return None


def _can_index(record: dict[str, Any]) -> bool:
    """Return whether SQLite can store the names and integers. Raises `ValueError` for lone surrogates."""
    names = [record.get(name, "") for name in ("env", "task_id", "split", "category", "policy", "cluster")]
    "".join(names).encode()
    integers = (record["difficulty"], record["sample"])
    return all(names[:2]) and all(abs(number) <= _MAX_INTEGER for number in integers)


def _can_show(episode: Episode) -> bool:
    """Return whether all numbers are finite and every sample has one log-probability per token id."""
    numbers = (episode.score or 0, *episode.seconds.values(), *(turn.reward for turn in episode.turns))
    samples = (turn.reply.sample for turn in episode.turns)
    return all(map(math.isfinite, numbers)) and all(
        len(sample.ids) == len(sample.logprobs) for sample in samples if sample
    )
