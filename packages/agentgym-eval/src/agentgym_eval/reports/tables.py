"""The tables of a report, as text in cells; the text and the page only differ in how they set them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentgym_eval.comparison import Comparison
from agentgym_eval.intervals import Interval
from agentgym_eval.report import Figures
from agentgym_eval.reports.evaluated import Evaluated, labels

_NOTHING = "–"
_DOUBTFUL = 0.1
"""From here on more digits of p tell nothing."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a table."""

    text: str
    small: str = ""
    """Beside it, less loud: the interval of a mean."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table under its heading. The first column names the rows; the others are numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


def summary(runs: Sequence[Evaluated], comparisons: Sequence[Comparison]) -> Iterator[Table]:
    """The tables that a report begins with: the runs, and what sets them apart."""
    overall = {name: run.report.overall for name, run in zip(labels(runs), runs, strict=True)}
    yield _figures("Results", "run", overall, notes=_INTERVALS)
    if comparisons:
        yield _compared(comparisons)


_INTERVALS = (
    "With each mean: its 95% interval over tasks. Failed episodes (the world broke, not the player) are in no mean.",
    "pass@k: at least one of k attempts succeeds; pass^k: all k do. Both by the unbiased estimators.",
)


def groups(run: Evaluated) -> Iterator[Table]:
    """The tables of a single run: the groups that its tasks fall into, and how its episodes ended."""
    report = run.report
    if len(report.by_world) > 1:
        yield _figures("By world", "world", report.by_world)
    yield _figures("By category", "category", report.by_category)
    if list(report.by_difficulty.values()) != list(report.by_category.values()):
        yield _figures("By difficulty", "difficulty", {str(at): by for at, by in report.by_difficulty.items()})
    yield _stops(run)


def _figures(title: str, noun: str, grouped: Mapping[str, Figures], *, notes: tuple[str, ...] = ()) -> Table:
    columns = _columns(list(grouped.values()))
    rows = tuple((Cell(name), *(cell(by) for cell in columns.values())) for name, by in grouped.items())
    return Table(title, (noun, *columns), rows, (*notes, *_left_out(grouped)))


def _columns(figures: Sequence[Figures]) -> dict[str, Callable[[Figures], Cell]]:
    """What is told of each group; tokens where any of them knows them, and every k that any of them has."""
    ks = sorted({k for by in figures for k in by.pass_at})
    columns: dict[str, Callable[[Figures], Cell]] = {
        "tasks": lambda by: Cell(f"{by.tasks:,}"),
        "episodes": lambda by: Cell(f"{by.episodes:,}"),
        "failed": lambda by: Cell(f"{by.failed:,}"),
        "success": lambda by: percent(by.success),
        "score": lambda by: percent(by.score),
        "turns": lambda by: number(by.turns, 1),
    }
    if any(by.tokens.tasks for by in figures):
        columns["tokens said"] = lambda by: number(by.tokens, 0)
    for k in ks:
        columns[f"pass@{k}"] = lambda by, k=k: percent(by.pass_at.get(k))
    for k in ks:
        if k > 1:  # pass^1 is pass@1
            columns[f"pass^{k}"] = lambda by, k=k: percent(by.pass_hat.get(k))
    return columns


def _left_out(grouped: Mapping[str, Figures]) -> Iterator[str]:
    for name, by in grouped.items():
        for k in by.pass_at:
            if count := by.left_out(k):
                yield f"{name}: pass@{k} and pass^{k} leave out {count} of {by.tasks} tasks that have fewer attempts."


def _compared(comparisons: Sequence[Comparison]) -> Table:
    columns = ("second against first", "tasks", "better", "worse", "success", "score", "turns")
    rows = tuple(
        (
            Cell(f"{at.second} against {at.first}"),
            *(Cell(f"{count:,}") for count in (at.tasks, at.better, at.worse)),
            _with_p(percent(at.success.difference, signed=True), at.success.p),
            _with_p(percent(at.score.difference, signed=True), at.score.p),
            _with_p(number(at.turns.difference, 1, signed=True), at.turns.p),
        )
        for at in comparisons
    )
    alone = tuple(
        f"{at.second} against {at.first}: {at.only_first} tasks that only the first and {at.only_second} that only the "
        "second played are left out."
        for at in comparisons
        if at.only_first or at.only_second
    )
    return Table("Compared task by task", columns, rows, (*_PAIRED, *alone))


_PAIRED = (
    "Each figure: the second's less the first's over the tasks that both played (shares in percentage points), with "
    "its 95% interval over tasks; p by a paired permutation test of the tasks' differences. Better and worse: tasks in "
    "which the second succeeded more often and less often.",
)


def _with_p(cell: Cell, p: float) -> Cell:
    if math.isnan(p):
        return cell
    said = f"p {p_value(p)}"
    return Cell(cell.text, f"{cell.small}, {said}" if cell.small else said)


def p_value(p: float) -> str:
    """With as many digits as tell something."""
    return f"{p:.4f}" if p < _DOUBTFUL else f"{p:.2f}"


def _stops(run: Evaluated) -> Table:
    """How episodes ended, all and those of each group, and what broke."""
    report = run.report
    worlds = report.by_world if len(report.by_world) > 1 else {}
    grouped = {"all": report.overall, **worlds, **report.by_category}
    if list(report.by_difficulty.values()) != list(report.by_category.values()):
        grouped |= {f"difficulty {at}": by for at, by in report.by_difficulty.items()}
    ends = list(report.overall.stops)
    rows = tuple(
        (Cell(name), *(_counted(by.stops.get(end, 0), by.episodes) for end in ends)) for name, by in grouped.items()
    )
    faults = tuple(f"Failed episodes, {count:,} of them: {fault}" for fault, count in report.faults.items())
    return Table("How episodes ended", ("episodes", *ends), rows, faults)


def _counted(count: int, of: int) -> Cell:
    return Cell(f"{count:,}", f"{count / of:.1%}")


def percent(at: Interval | None, *, signed: bool = False) -> Cell:
    """A share in percent with its interval; a difference of shares, which has a sign, in percentage points."""
    return _cell(at, 100, *(("+.1f", " points") if signed else (".1f", "%")))


def number(at: Interval | None, digits: int, *, signed: bool = False) -> Cell:
    """A mean with its interval."""
    return _cell(at, 1, f"{'+' if signed else ''},.{digits}f", "")


def _cell(at: Interval | None, factor: float, form: str, unit: str) -> Cell:
    if at is None or math.isnan(at.mean):
        return Cell(_NOTHING)
    mean = f"{at.mean * factor:{form}}{unit}"
    if math.isnan(at.low):
        return Cell(mean)
    return Cell(mean, f"{at.low * factor:{form}} to {at.high * factor:{form}}")


def facts(run: Evaluated) -> dict[str, dict[str, str]]:
    """What goes with the figures, by heading: what is known of the run itself, then settings, versions, usage."""
    loose = {name: value for name, value in run.about.items() if value and not isinstance(value, Mapping)}
    headed = {name: value for name, value in run.about.items() if value and isinstance(value, Mapping)}
    return {
        name.capitalize(): {key: _shown(value) for key, value in values.items()}
        for name, values in {"run": loose, **headed}.items()
        if values
    }


def _shown(value: object) -> str:
    """Text as it is, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
