"""Settings for pairing episodes. This module imports nothing heavy, for the sake of `--help`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Pairing:
    """How episodes are paired for preference learning."""

    min_gap: float = 0.1
    """Minimum difference of the scores, above 0."""
    most: int = 4
    """Maximum number of pairs per task."""
    seed: int = 0
    """Random seed of the choice among equally good pairs."""
    turns: int = 0
    """Number of turns of each side that are compared, from where the two diverge; 0: all. With 1, the chosen and
    rejected parts of a pair written by `convert` contain replies of the agent only, and no later observations."""
    truncated: Literal["keep", "shorten", "drop"] = "keep"
    """What to do with rejected episodes that were truncated by the horizon, which are longer than most chosen ones.
    keep: nothing; shorten: compare at most as many of their turns as the chosen episode has; drop: don't use them as
    rejected episodes."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ValueError: If a value is out of range.
        """
        if not 0 < self.min_gap <= 1 or self.most < 1 or min(self.seed, self.turns) < 0:
            raise ValueError(
                "pairs need min_gap above 0 and at most 1, most of at least 1, and seed and turns of at least 0, not "
                f"{self.min_gap:g}, {self.most}, {self.seed} and {self.turns}."
            )
