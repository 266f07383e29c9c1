"""Labels of the weights that a vLLM server holds: whose they are, after how many updates, and which load brought them.

The server repeats the label in its answers, so a client learns whether another one has replaced them.
"""

from __future__ import annotations

from dataclasses import dataclass

FRESH = "default"
"""vLLM's label of the weights that a server starts with."""


@dataclass(frozen=True, slots=True)
class WeightLabels:
    """The labels of one training run, `RUN@VERSION.LOADS`."""

    run: str
    """Unique name of the run."""

    @property
    def replacing(self) -> str:
        """The label while weights are being replaced."""
        return f"{self.run}@none"

    def of(self, version: int, loads: int) -> str:
        """Return the label of the weights after `version` updates that the load of number `loads` brings. The number
        distinguishes different weights of the same version.
        """
        return f"{self.run}@{version}.{loads}"

    def owns(self, label: str) -> bool:
        """Whether the run has given the weights with this label, whole or not."""
        return label.rpartition("@")[0] == self.run

    def read(self, label: str) -> tuple[int, int] | None:
        """Return the version and the number of the load in a label; None if it isn't of whole weights of the run."""
        if not self.owns(label) or label == self.replacing:
            return None
        version, _, loads = label.rpartition("@")[2].partition(".")
        return int(version), int(loads)
