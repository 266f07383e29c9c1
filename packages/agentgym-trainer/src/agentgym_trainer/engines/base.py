"""Engines: token ids in, sampled token ids and their log-probabilities out. They know no text and no worlds.

One protocol for all: the training module itself (`transformers`), vLLM in this process (`vllm`), and a vLLM server
(`vllm_server`). Importing this imports none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from agentgym_trainer.models.weights import Weights

__all__ = ["Completion", "Engine", "EngineGone", "EngineUsage", "SamplingParams", "Weights"]


class EngineError(RuntimeError):
    """Nothing can be sampled any more that would be worth training on."""


class EngineGone(EngineError):
    """An engine that can't be brought back: it died again after a restart, or its server stayed away for too long."""


class LogprobMismatch(EngineError):
    """The engine's log-probabilities are not the learner's: what is sampled would not be what is trained."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one reply are drawn."""

    temperature: float = 1.0
    """Logits are divided by it; 0 takes the most likely token (whose log-probability then counts as 0)."""
    max_tokens: int = 512
    """The most tokens of the reply."""
    seed: int = 0
    """What is sampled hangs on it, the ids and the weights, and not on who else is being sampled (but for rounding)."""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"A temperature is at least 0, not {self.temperature}.")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is at least 1, not {self.max_tokens}.")


@dataclass(frozen=True, slots=True)
class Completion:
    """One reply sampled."""

    ids: tuple[int, ...]
    """The end-of-turn token included when it was sampled."""
    logprobs: tuple[float, ...]
    """Of each id under the distribution it was drawn from."""
    finish: Literal["stop", "length"]
    """`length` when the budget ended it."""
    version: int
    """Of the weights that the first id was sampled with."""
    versions: tuple[int, ...] = ()
    """Of the weights that each id was sampled with, where they changed within the reply; empty otherwise."""

    @classmethod
    def sampled(
        cls,
        ids: Sequence[int],
        logprobs: Sequence[float],
        finish: Literal["stop", "length"],
        versions: Sequence[int],
    ) -> Completion:
        """The reply of these ids, of which at least one was sampled, each with weights of the version beside it."""
        mixed = tuple(versions) if len(set(versions)) > 1 else ()
        return cls(tuple(ids), tuple(logprobs), finish, versions[0], mixed)


@dataclass(slots=True)
class EngineUsage:
    """What an engine has done since it was made."""

    prefilled: int = 0
    """Tokens that were read, other than sampled ones."""
    reused: int = 0
    """Tokens that needed no reading: they stood in a cache."""
    generated: int = 0
    busy: float = 0.0
    """Seconds in which it was at work."""


class Engine(Protocol):
    """Samples replies to any number of contexts, which join and leave at any time. All of it runs in one event loop."""

    version: int
    """Number of updates that the weights have seen."""
    usage: EngineUsage
    max_context: int
    """The most tokens that a context and its reply may have together."""

    async def generate(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """A reply to a whole context. What of it the engine still holds in a cache isn't read again.

        Raises:
            EngineGone: when the engine can't be brought back.
            ValueError: when context and budget are longer than `max_context`.
        """
        ...

    async def load(self, weights: Weights) -> None:
        """Take new weights, in place. Replies under way go on with them (in-flight weight updates: AReaL, arXiv
        2505.24298; PipelineRL, arXiv 2509.19128): what they have so far stays, with the versions and log-probabilities
        that it was sampled with, and is read again as context, for caches of the old weights are dropped.
        """
        ...

    async def sleep(self) -> None:
        """Free what only sampling needs, until the next `load` or `generate`. Nothing is under way."""
        ...

    async def close(self) -> None:
        """Free everything. May be called twice."""
        ...
