"""The protocol of inference engines: token ids in, sampled token ids and their log-probabilities out.

Three engines implement it: the training module itself (`transformers`), vLLM in this process (`vllm`), and a vLLM
server (`vllm-server`). Importing this module imports none of them. Engines depend on neither text nor environments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from agentgym_trainer.models.weights import Weights

__all__ = ["Completion", "Engine", "EngineGone", "EngineUsage", "SamplingParams", "Weights"]


class EngineError(RuntimeError):
    """The engine can no longer produce samples that are usable for training."""


class EngineGone(EngineError):
    """The engine can't be recovered: it died again after a restart, or its server stayed unreachable for too long."""


class LogprobMismatch(EngineError):
    """The log-probabilities of engine and learner differ: the policy sampled would not be the policy trained."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request."""

    temperature: float = 1.0
    """Divides the logits; 0 is greedy decoding, with a log-probability of 0 for every token."""
    max_tokens: int = 512
    """The maximum number of completion tokens."""
    seed: int = 0
    """Seed of this request. Up to rounding, the completion depends only on the seed, the context and the weights, not
    on other requests in the batch."""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be at least 0, not {self.temperature}.")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {self.max_tokens}.")

    def check_length(self, context: int, max_context: int) -> None:
        """Check that a context of so many tokens and its completion fit into an engine.

        Raises:
            ValueError: when the context is empty, or exceeds `max_context` together with its token budget.
        """
        if not 0 < context <= max_context - self.max_tokens:
            raise ValueError(
                f"A context of {context} tokens and a reply of up to {self.max_tokens} don't fit: this engine takes 1 "
                f"to {max_context} tokens in all."
            )


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled completion."""

    ids: tuple[int, ...]
    """The completion tokens, including the end-of-turn token if it was sampled."""
    logprobs: tuple[float, ...]
    """The log-probability of each id under the distribution it was drawn from."""
    finish: Literal["stop", "length"]
    """`length` when the token budget ended the completion."""
    version: int
    """The version of the weights that sampled the first id."""
    versions: tuple[int, ...] = ()
    """The version of the weights that sampled each id, if it changed within the completion; empty otherwise."""

    @classmethod
    def sampled(
        cls,
        ids: Sequence[int],
        logprobs: Sequence[float],
        finish: Literal["stop", "length"],
        versions: Sequence[int],
    ) -> Completion:
        """Return the completion of these ids, of which there is at least one, with one weight version per id."""
        mixed = tuple(versions) if len(set(versions)) > 1 else ()
        return cls(tuple(ids), tuple(logprobs), finish, versions[0], mixed)


@dataclass(slots=True)
class EngineUsage:
    """Counters of an engine since its creation."""

    prefilled: int = 0
    """Prompt tokens that were computed."""
    reused: int = 0
    """Prompt tokens that were found in the KV cache."""
    generated: int = 0
    """Completion tokens that were sampled."""
    busy: float = 0.0
    """Seconds during which the engine was working."""


class Engine(Protocol):
    """Samples completions for any number of concurrent requests, which join and leave at any time.

    All methods are called from one event loop.
    """

    version: int
    """Number of updates that the weights have seen."""
    usage: EngineUsage
    max_context: int
    """The maximum number of tokens of a context and its completion together."""

    async def generate(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Sample a completion of a whole context. Prefixes that are still in the KV cache aren't computed again.

        Raises:
            EngineGone: when the engine can't be recovered.
            ValueError: when context and token budget exceed `max_context`.
        """
        ...

    async def load(self, weights: Weights) -> None:
        """Load new weights in place. Requests in flight continue with them.

        These are in-flight weight updates (AReaL, arXiv 2505.24298; PipelineRL, arXiv 2509.19128): tokens sampled so
        far keep their versions and log-probabilities and are prefilled again, because caches of the old weights are
        dropped.

        Weights that don't last (`Weights.lasting`) can only be read until this returns, once. An engine that waits for
        other processes meanwhile must have read them before.
        """
        ...

    async def sleep(self) -> bool:
        """Free what only sampling needs, until the next `load` or `generate`. No request may be in flight.

        Returns:
            Whether to `load` the weights again before the next `generate`: they were dropped, and `generate` would
            bring them back more slowly.
        """
        ...

    async def close(self) -> None:
        """Free everything. May be called twice."""
        ...
