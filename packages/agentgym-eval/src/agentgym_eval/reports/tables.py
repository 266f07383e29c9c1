"""The tables of a report, as text in cells; the text and the page only differ in how they set them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentgym_eval.metrics.comparison import Comparison
from agentgym_eval.metrics.intervals import FEWEST, Interval
from agentgym_eval.metrics.seeds import AcrossSeeds
from agentgym_eval.metrics.summary import SummaryMetrics
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


def summary(
    runs: Sequence[Evaluated], comparisons: Sequence[Comparison], across: AcrossSeeds | None = None
) -> Iterator[Table]:
    """The tables that a report begins with: the runs, and what sets them apart, task by task and over seeds."""
    overall = {name: run.report.overall for name, run in zip(labels(runs), runs, strict=True)}
    yield _figures("Results", "run", overall, notes=(_MEANS, *_clusters(overall), _PASSES))
    if comparisons:
        yield _compared(comparisons)
    if across:
        yield _over_seeds(across)


_MEANS = (
    "With each mean: its 95% interval over tasks. Failed episodes (the world broke, not the player) are in no mean."
)
_PASSES = "pass@k: at least one of k attempts succeeds; pass^k: all k do. Both by the unbiased estimators."


def _clusters(overall: Mapping[str, SummaryMetrics]) -> Iterator[str]:
    clustered = {name: sentence for name, by in overall.items() if (sentence := of_clusters(by))}
    if len(set(clustered.values())) == 1 and len(clustered) == len(overall):
        yield next(iter(clustered.values()))
    else:
        yield from (f"{name}: {sentence}" for name, sentence in clustered.items())


def of_clusters(by: SummaryMetrics) -> str:
    """Whether intervals are over clusters of tasks, and how alike the tasks of one come out; empty where tasks have no
    clusters.
    """
    alike = "" if math.isnan(by.icc) else f" The intra-class correlation of success within them is {by.icc:.2f}."
    tasks, clusters = by.success.tasks, by.success.clusters
    if clusters is not None:
        return f"The {tasks:,} tasks are of {clusters:,} clusters, which intervals are over.{alike}"
    if not alike:
        return ""
    return (
        f"The {tasks:,} tasks are of fewer than {FEWEST} clusters, which are taken as given: intervals are over tasks, "
        f"and say nothing of other clusters.{alike}"
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


def _figures(title: str, noun: str, grouped: Mapping[str, SummaryMetrics], *, notes: tuple[str, ...] = ()) -> Table:
    columns = _columns(list(grouped.values()))
    rows = tuple((Cell(name), *(cell(by) for cell in columns.values())) for name, by in grouped.items())
    return Table(title, (noun, *columns), rows, (*notes, *_left_out(grouped)))


def _columns(figures: Sequence[SummaryMetrics]) -> dict[str, Callable[[SummaryMetrics], Cell]]:
    """What is told of each group; tokens where any of them knows them, and every k that any of them has."""
    ks = sorted({k for by in figures for k in by.pass_at})
    columns: dict[str, Callable[[SummaryMetrics], Cell]] = {
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


def _left_out(grouped: Mapping[str, SummaryMetrics]) -> Iterator[str]:
    for name, by in grouped.items():
        for k in by.pass_at:
            if count := by.left_out(k):
                yield f"{name}: pass@{k} and pass^{k} leave out {count} of {by.tasks} tasks that have fewer attempts."


def _compared(comparisons: Sequence[Comparison]) -> Table:
    columns = ("second against first", "tasks", "better", "worse", *_DIFFERENCES)
    rows = tuple(
        (
            Cell(f"{at.second} against {at.first}"),
            *(Cell(f"{count:,}") for count in (at.tasks, at.better, at.worse)),
            *_differences(at),
        )
        for at in comparisons
    )
    alone = tuple(
        f"{at.second} against {at.first}: {at.only_first} tasks that only the first and {at.only_second} that only the "
        "second played are left out."
        for at in comparisons
        if at.only_first or at.only_second
    )
    adjusted = f" adjusted for {len(comparisons)} comparisons (Holm)" if len(comparisons) > 1 else ""
    return Table("Compared task by task", columns, rows, (_PAIRED.format(adjusted=adjusted), _DETECTABLE, *alone))


_DIFFERENCES = ("success", "detectable", "score", "turns")


def _differences(at: Comparison | AcrossSeeds) -> tuple[Cell, ...]:
    return (
        _with_p(percent(at.success.difference, signed=True), at.success.p_adjusted),
        Cell(_NOTHING if math.isnan(at.success.detectable) else f"{at.success.detectable * 100:.1f} points"),
        _with_p(percent(at.score.difference, signed=True), at.score.p_adjusted),
        _with_p(number(at.turns.difference, 1, signed=True), at.turns.p_adjusted),
    )


def _over_seeds(at: AcrossSeeds) -> Table:
    columns = ("second against first", "seeds", *_DIFFERENCES)
    rows = ((Cell(f"{at.second} against {at.first}"), Cell(str(at.seeds)), *_differences(at)),)
    return Table("Compared seed by seed", columns, rows, (_SEEDS,))


_SEEDS = (
    "The mean of the differences above, with its 95% interval and p by Student's paired test over training seeds: what "
    "other seeds would have come to on these tasks. The intervals above take the trained models as they are."
)
_PAIRED = (
    "Each figure: the second's less the first's over the tasks that both played (shares in percentage points), with "
    "its 95% interval over tasks or clusters of tasks; p by a paired permutation test of their differences{adjusted}. "
    "Better and worse: tasks in which the second succeeded more often and less often."
)
_DETECTABLE = (
    "Detectable: the smallest difference in success that four of five such comparisons would show (p < 0.05). What is "
    "smaller needs more tasks or samples."
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
