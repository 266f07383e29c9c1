"""Configuration of models built from scratch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Merges = Literal["phrases", "words", "labels"]


@dataclass(frozen=True)
class Scratch:
    """Size of a model that is built from scratch."""

    vocab: int = 512
    """Vocabulary size of the tokenizer, at least 259 (bytes and control tokens)."""
    merges: Merges = "phrases"
    """phrases: a token may span several words, which shortens recurring phrases. words: a token is at most one word and
    the space before it, so that a name has the same tokens in most places, which makes it easier to copy. labels: a
    token is letters, one or two digits, or what is between them, so that a name has the same tokens after a space and
    in quotation marks."""
    hidden: int = 96
    """Hidden size."""
    layers: int = 3
    """Number of layers."""
    heads: int = 4
    """Attention heads; must divide `hidden` with an even quotient."""
    context: int = 2048
    """Maximum context length in tokens."""
    episodes: int = 64
    """Number of expert episodes to train the tokenizer on, and of as many episodes without a valid action, over all
    environments."""

    def __post_init__(self) -> None:
        if self.vocab < 259:
            raise ValueError(f"A byte-level vocabulary has at least 259 entries, not {self.vocab}.")
        if self.episodes < 1:
            raise ValueError(f"A tokenizer is trained on at least one episode, not {self.episodes}.")
        for name in ("hidden", "layers", "heads", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"scratch.{name} must be at least 1, not {getattr(self, name)}.")
        if self.hidden % (2 * self.heads):
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of twice heads ({self.heads}).")
