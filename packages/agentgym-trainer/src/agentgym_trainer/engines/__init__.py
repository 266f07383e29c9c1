"""Engines: token ids in, sampled token ids and their log-probabilities out. They know no text and no worlds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float = 1.0
    """Logits are divided by it; 0 takes the most likely token (whose log-probability then counts as 0)."""
    max_tokens: int = 512
    """The most tokens of one reply."""
    max_context: int = 8704
    """The most tokens of a whole context, replies included."""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"A temperature is at least 0, not {self.temperature}.")
        if min(self.max_tokens, self.max_context) < 1:
            raise ValueError("max_tokens and max_context are at least 1.")


@dataclass(frozen=True, slots=True)
class Request:
    """One reply wanted."""

    key: int
    """The trajectory; what it said and saw before is still in the engine."""
    ids: tuple[int, ...]
    """The ids to append to its context; the whole context when `fresh`."""
    fresh: bool
    rng: np.random.Generator
    """The trajectory's own source of chance, so that what it samples doesn't hang on who else is being sampled."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One reply sampled."""

    ids: tuple[int, ...]
    """The end-of-turn token included when it was sampled."""
    logprobs: tuple[float, ...]
    """Of each id under the distribution it was drawn from."""
    finish: Literal["stop", "length"]
    """`length` when a token budget ended it."""


class Engine(Protocol):
    """Samples replies for trajectories that join and leave at any time."""

    version: int
    """Number of updates that the weights have seen."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """One completion per request, in order. Trajectories that are not asked for stay as they are."""
        ...

    def release(self, keys: Sequence[int]) -> None:
        """These trajectories have ended: forget them."""
        ...
