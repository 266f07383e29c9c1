"""How episodes are paired up, as settings. Importing this loads nothing else, for the sake of `--help`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Pairing:
    """Which pairs of episodes are made to learn preferences from."""

    min_gap: float = 0.1
    """Least difference of the scores, above 0."""
    most: int = 4
    """Most pairs of a task."""
    seed: int = 0
    """Decides which ones, among those that are as good."""
    turns: int = 0
    """Turns of each side that are compared, from where the two diverge; 0: all. With 1, what TRL compares of a pair
    that `convert` wrote is what the agent said, and nothing that the world answered."""
    truncated: Literal["keep", "shorten", "drop"] = "keep"
    """Rejected episodes that the horizon cut are longer than most that were chosen. shorten: compared are no more of
    their turns than the chosen has; drop: they are rejected in no pair."""

    def __post_init__(self) -> None:
        """Refuse what makes no pairs.

        Raises:
            ValueError: naming what is out of range.
        """
        if not 0 < self.min_gap <= 1 or self.most < 1 or min(self.seed, self.turns) < 0:
            raise ValueError(
                "pairs need a min_gap above 0 up to 1, most of at least 1, and seed and turns from 0, not "
                f"{self.min_gap:g}, {self.most}, {self.seed} and {self.turns}."
            )
