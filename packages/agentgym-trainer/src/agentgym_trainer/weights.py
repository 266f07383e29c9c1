"""Weights on their way from a learner to an engine: all that the two have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """What a learner gives an engine."""

    version: int
    """Number of updates they have seen."""
    tensors: Callable[[], Iterator[tuple[str, Tensor]]]
    """Names in Hugging Face's layout and whole tensors; the same ones whenever it is called, until the next load."""
    adapter: Mapping[str, Any] | None = None
    """Configuration of the LoRA adapter that the tensors are, in peft's layout; None when they are a whole model."""
