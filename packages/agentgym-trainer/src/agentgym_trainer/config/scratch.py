"""Settings of a model that is built from scratch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Merges = Literal["phrases", "words"]


@dataclass(frozen=True)
class Scratch:
    """Size of a model built on the spot."""

    vocab: int = 512
    """Entries of the tokenizer, at least 259 (bytes and control tokens)."""
    merges: Merges = "phrases"
    """Whether a token may be a whole phrase, which makes set phrases short, or no more than a word, so that a name is
    spelled alike wherever it stands, which makes it easier to copy."""
    hidden: int = 96
    layers: int = 3
    heads: int = 4
    """Attention heads; must divide `hidden` with an even quotient."""
    context: int = 2048
    """Longest context in tokens."""
    episodes: int = 64
    """Episodes of an expert, and as many of an agent that takes no valid action, whose text the tokenizer is trained
    on; over all environments."""

    def __post_init__(self) -> None:
        if self.vocab < 259:
            raise ValueError(f"A byte-level vocabulary has at least 259 entries, not {self.vocab}.")
        if self.episodes < 1:
            raise ValueError(f"A tokenizer is trained on at least one episode, not {self.episodes}.")
        if self.hidden % (2 * self.heads):
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of twice heads ({self.heads}).")
