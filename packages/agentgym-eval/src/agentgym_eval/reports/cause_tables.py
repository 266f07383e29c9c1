"""The tables of failure causes in a report: of a run, of several side by side, and compared task by task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentgym_eval.metrics.comparison import Comparison
from agentgym_eval.metrics.failure_causes import KINDS, LABELS, ORACLE_KINDS
from agentgym_eval.metrics.summary import Report
from agentgym_eval.reports.cells import Cell, Table, percent, with_p
from agentgym_eval.reports.evaluated import Evaluated, labels


def causes_of(report: Report) -> Iterator[Table]:
    """Yield the table of a run's failure causes, if it has unsuccessful episodes."""
    causes = report.causes
    total = sum(by.episodes for by in causes.values())
    rows = tuple(
        (Cell(LABELS[kind]), Cell(f"{by.episodes:,}"), Cell(f"{by.episodes / total:.1%}"), percent(by.share))
        for kind, by in causes.items()
    )
    if rows:
        yield Table(
            "Why episodes failed", ("cause", "episodes", "of failures", "of attempts"), rows, _cause_notes([report])
        )


def causes_by_run(runs: Sequence[Evaluated]) -> Iterator[Table]:
    """Yield the table of the failure causes of several runs, if any occurred."""
    kinds = [kind for kind in KINDS if any(kind in run.report.causes for run in runs)]
    rows = tuple(
        (Cell(name), *(_share_of(run, kind) for kind in kinds)) for name, run in zip(labels(runs), runs, strict=True)
    )
    if kinds:
        columns = ("run", *(LABELS[kind] for kind in kinds))
        yield Table("Why episodes failed", columns, rows, _cause_notes([run.report for run in runs]))


def _share_of(run: Evaluated, kind: str) -> Cell:
    by = run.report.causes.get(kind)
    return Cell("0") if by is None else percent(by.share)


def _cause_notes(reports: Sequence[Report]) -> tuple[str, ...]:
    measured = any(kind in ORACLE_KINDS for report in reports for kind in report.causes)
    return (_CAUSES,) if measured else (_CAUSES, _WITHOUT_ORACLE)


_CAUSES = (
    "Shares of attempts that failed for a cause, with 95% intervals over tasks. Each unsuccessful episode has one "
    "cause; the environment's own faults are not among them."
)
_WITHOUT_ORACLE = (
    f"{LABELS['over_interaction'].capitalize()} and {LABELS['moved_away']} need the expert's distances (--forensics); "
    "without them, such episodes count as budgets."
)


def compared_causes(comparisons: Sequence[Comparison]) -> Iterator[Table]:
    """Yield the table of failure causes compared task by task, if any occurred."""
    one = comparisons[0] if len(comparisons) == 1 else None
    rows = tuple(
        (
            Cell(LABELS[kind] if one else f"{at.second} vs. {at.first}: {LABELS[kind]}"),
            Cell(f"{found.first:.1%}"),
            Cell(f"{found.second:.1%}"),
            with_p(percent(found.difference, signed=True), found.p_adjusted),
        )
        for at in comparisons
        for kind, found in at.causes.items()
    )
    names = ("cause", one.first, one.second) if one else ("second vs. first: cause", "first", "second")
    if rows:
        yield Table("Failure causes compared task by task", (*names, "difference"), rows, (_VS,))


_VS = (
    "Shares of attempts over the tasks that both played; the difference is the second's minus the first's in "
    "percentage points, with its 95% interval and p by a paired permutation test, adjusted for the number of causes "
    "(Holm)."
)
