"""Lines of `metrics.jsonl` of runs that are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

MEASURED = ("seconds", "tokens_per_s", "memory")
"""Metrics that differ between two runs of the same command."""


def without_measured(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines without `MEASURED`."""
    return [{name: value for name, value in line.items() if name not in MEASURED} for line in lines]
