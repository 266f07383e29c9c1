"""How episodes are paired up, as settings. Importing this loads nothing else, for the sake of `--help`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pairing:
    """Which pairs of episodes are made to learn preferences from."""

    min_gap: float = 0.1
    """Least difference of the scores, above 0."""
    most: int = 4
    """Most pairs of a task."""
    seed: int = 0
    """Decides which ones, among those that are as good."""

    def __post_init__(self) -> None:
        """Refuse what makes no pairs.

        Raises:
            ValueError: naming what is out of range.
        """
        if not 0 < self.min_gap <= 1 or self.most < 1 or self.seed < 0:
            raise ValueError(
                "pairs need a min_gap above 0 up to 1, most of at least 1 and a seed from 0, not "
                f"{self.min_gap:g}, {self.most} and {self.seed}."
            )
