"""Cells of the tables of reports: numbers with intervals and p-values as text."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentgym_eval.metrics.intervals import Interval

MISSING = "–"
"""Text of an unknown value."""
_TWO_DIGITS = 0.1
"""p-values from here on are printed with two digits."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell."""

    text: str
    small: str = ""
    """Secondary text, such as the interval of a mean."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its title. The first column names the rows; the others are numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


def with_p(cell: Cell, p: float) -> Cell:
    """Add a p-value to the secondary text of a cell; NaN adds nothing."""
    if math.isnan(p):
        return cell
    p_text = f"p {p_value(p)}"
    return Cell(cell.text, f"{cell.small}, {p_text}" if cell.small else p_text)


def p_value(p: float) -> str:
    """Format a p-value with a useful number of digits."""
    return f"{p:.4f}" if p < _TWO_DIGITS else f"{p:.2f}"


def percent(at: Interval | None, *, signed: bool = False) -> Cell:
    """Format a share in percent with its interval; a difference of shares (`signed`) in percentage points."""
    return _cell(at, 100, *(("+.1f", " points") if signed else (".1f", "%")))


def number(at: Interval | None, digits: int, *, signed: bool = False) -> Cell:
    """Format a mean with its interval."""
    return _cell(at, 1, f"{'+' if signed else ''},.{digits}f", "")


def _cell(at: Interval | None, factor: float, form: str, unit: str) -> Cell:
    if at is None or math.isnan(at.mean):
        return Cell(MISSING)
    mean = f"{at.mean * factor:{form}}{unit}"
    if math.isnan(at.low):
        return Cell(mean)
    return Cell(mean, f"{at.low * factor:{form}} to {at.high * factor:{form}}")
