"""What makes a line of a file an episode: it can be read as one, and the index can hold its figures."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

from agentgym_envs import Episode

_LARGEST = 2**63 - 1
"""Integer that SQLite knows."""


def read_line(line: bytes) -> dict[str, Any] | None:
    """The episode's JSON; None where the line is damaged, which any wrong field makes it."""
    with suppress(ValueError, TypeError, KeyError, OverflowError):
        text = line.decode("utf-8-sig")
        episode = Episode.from_json(text)
        record = json.loads(text)
        if _is_indexed(record) and _is_shown(episode):
            return record
    return None


def _is_indexed(record: dict[str, Any]) -> bool:
    """Whether a database takes its names and numbers. Raises `ValueError` for halves of characters."""
    names = [record.get(name, "") for name in ("env", "task_id", "split", "category", "policy", "cluster")]
    "".join(names).encode()
    whole = (record["difficulty"], record["sample"])
    return all(names[:2]) and all(abs(number) <= _LARGEST for number in whole)


def _is_shown(episode: Episode) -> bool:
    """Whether its numbers can be added up and its tokens told apart."""
    numbers = (episode.score or 0, *episode.seconds.values(), *(turn.reward for turn in episode.turns))
    samples = (turn.reply.sample for turn in episode.turns)
    return all(map(math.isfinite, numbers)) and all(
        len(sample.ids) == len(sample.logprobs) for sample in samples if sample
    )
