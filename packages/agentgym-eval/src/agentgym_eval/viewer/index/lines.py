"""Validation of one line of an episode file: it must parse as an episode, and the index must be able to store it."""

from __future__ import annotations

import math
from contextlib import suppress

from agentgym_envs import Episode

_MAX_INTEGER = 2**63 - 1
"""The largest SQLite integer."""


def read_line(line: bytes) -> Episode | None:
    """Return the episode; None if the line is damaged, which any invalid field makes it."""
    with suppress(ValueError, TypeError, KeyError, OverflowError):
        episode = Episode.from_json(line.decode("utf-8-sig"))
        if _can_index(episode) and _can_show(episode):
            return episode
    return None


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
