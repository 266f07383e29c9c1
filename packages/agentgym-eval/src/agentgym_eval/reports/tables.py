"""The tables of a report as text cells, shared by the Markdown and HTML reports and the terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from agentgym_eval.metrics.comparison import Comparison
from agentgym_eval.metrics.intervals import FEWEST
from agentgym_eval.metrics.seeds import AcrossSeeds
from agentgym_eval.metrics.summary import SummaryMetrics
from agentgym_eval.reports.cause_tables import causes_by_run, causes_of, compared_causes
from agentgym_eval.reports.cells import MISSING, Cell, Table, number, percent, with_p
from agentgym_eval.reports.evaluated import Evaluated, labels


def summary(
    runs: Sequence[Evaluated], comparisons: Sequence[Comparison], across: AcrossSeeds | None = None
) -> Iterator[Table]:
    """Yield the summary tables of a report: the runs, and their comparisons task by task and over seeds."""
    overall = {name: run.report.overall for name, run in zip(labels(runs), runs, strict=True)}
    protocols = dict.fromkeys(run.about["protocol"] for run in runs if run.about.get("protocol"))
    incomplete = [run.about["incomplete"] for run in runs if run.about.get("incomplete")]
    notes = (*incomplete, _MEANS, *_clusters(overall), _PASSES, *protocols)
    yield _metrics_table("Results", "run", overall, notes=notes)
    if comparisons:
        yield _compared(comparisons, seeds=across is not None)
    if across:
        yield _over_seeds(across)
    if len(runs) > 1:
        yield from causes_by_run(runs)
    yield from compared_causes(comparisons)


_MEANS = "Means with 95% intervals over tasks. Failed episodes (the environment broke, not the policy) are excluded."
_PASSES = "pass@k: at least one of k attempts succeeds; pass^k: all k succeed (unbiased estimators)."


def _clusters(overall: Mapping[str, SummaryMetrics]) -> Iterator[str]:
    clustered = {name: sentence for name, by in overall.items() if (sentence := of_clusters(by))}
    if len(set(clustered.values())) == 1 and len(clustered) == len(overall):
        yield next(iter(clustered.values()))
    else:
        yield from (f"{name}: {sentence}" for name, sentence in clustered.items())


def of_clusters(by: SummaryMetrics) -> str:
    """Return a sentence on the clusters of the tasks and their intra-class correlation; empty if tasks have no
    clusters.
    """
    alike = "" if math.isnan(by.icc) else f" The intra-class correlation of success is {by.icc:.2f}."
    tasks, clusters = by.success.tasks, by.success.clusters
    if clusters is not None:
        return f"The {tasks:,} tasks form {clusters:,} clusters; intervals are over clusters.{alike}"
    if not alike:
        return ""
    return (
        f"The {tasks:,} tasks form fewer than {FEWEST} clusters, so intervals are over tasks and don't generalize to "
        f"other clusters.{alike}"
    )


def groups(run: Evaluated) -> Iterator[Table]:
    """Yield the tables of a single run: its groups of tasks, and the stop reasons of its episodes."""
    report = run.report
    if len(report.by_world) > 1:
        yield _metrics_table("By environment", "environment", report.by_world)
    yield _metrics_table("By category", "category", report.by_category)
    if list(report.by_difficulty.values()) != list(report.by_category.values()):
        yield _metrics_table("By difficulty", "difficulty", {str(at): by for at, by in report.by_difficulty.items()})
    yield from causes_of(report)
    yield _stops(run)


def _metrics_table(
    title: str, row_heading: str, grouped: Mapping[str, SummaryMetrics], *, notes: tuple[str, ...] = ()
) -> Table:
    columns = _columns(list(grouped.values()))
    rows = tuple((Cell(name), *(cell(by) for cell in columns.values())) for name, by in grouped.items())
    return Table(title, (row_heading, *columns), rows, (*notes, *_left_out(grouped)))


def _columns(groups_metrics: Sequence[SummaryMetrics]) -> dict[str, Callable[[SummaryMetrics], Cell]]:
    """Return the columns: tokens if any group has them, and every k that any group has."""
    ks = sorted({k for by in groups_metrics for k in by.pass_at})
    columns: dict[str, Callable[[SummaryMetrics], Cell]] = {
        "tasks": lambda by: Cell(f"{by.tasks:,}"),
        "episodes": lambda by: Cell(f"{by.episodes:,}"),
        "failed": lambda by: Cell(f"{by.failed:,}"),
        "success": lambda by: percent(by.success),
        "score": lambda by: percent(by.score),
        "turns": lambda by: number(by.turns, 1),
    }
    if any(by.tokens.tasks for by in groups_metrics):
        columns["tokens"] = lambda by: number(by.tokens, 0)
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
                yield f"{name}: pass@{k} and pass^{k} exclude {count} of {by.tasks} tasks, which have fewer attempts."


def _compared(comparisons: Sequence[Comparison], *, seeds: bool) -> Table:
    columns = ("second vs. first", "tasks", "better", "worse", *_DIFFERENCES)
    rows = tuple(
        (
            Cell(f"{at.second} vs. {at.first}"),
            *(Cell(f"{count:,}") for count in (at.tasks, at.better, at.worse)),
            *_differences(at),
        )
        for at in comparisons
    )
    unpaired = tuple(
        f"{at.second} vs. {at.first}: excluded are {at.only_first} tasks that only the first and {at.only_second} that "
        "only the second played."
        for at in comparisons
        if at.only_first or at.only_second
    )
    tested = sum(at.tasks > 0 for at in comparisons)
    adjusted = f" adjusted for {tested} comparisons (Holm)" if tested > 1 and not seeds else ""
    return Table("Compared task by task", columns, rows, (_PAIRED.format(adjusted=adjusted), _DETECTABLE, *unpaired))


_DIFFERENCES = ("success", "detectable", "score", "turns")


def _differences(at: Comparison | AcrossSeeds) -> tuple[Cell, ...]:
    return (
        with_p(percent(at.success.difference, signed=True), at.success.p_adjusted),
        Cell(MISSING if math.isnan(at.success.detectable) else f"{at.success.detectable * 100:.1f} points"),
        with_p(percent(at.score.difference, signed=True), at.score.p_adjusted),
        with_p(number(at.turns.difference, 1, signed=True), at.turns.p_adjusted),
    )


def _over_seeds(at: AcrossSeeds) -> Table:
    columns = ("second vs. first", "seeds", *_DIFFERENCES)
    rows = ((Cell(f"{at.second} vs. {at.first}"), Cell(str(at.seeds)), *_differences(at)),)
    return Table("Compared seed by seed", columns, rows, (_SEEDS,))


_SEEDS = (
    "The mean of the differences above, with its 95% interval and p by Student's paired test over training seeds; it "
    "generalizes to other seeds on these tasks. The intervals above are for these trained models only."
)
_PAIRED = (
    "Each metric: second minus first over the tasks that both played (shares in percentage points), with its 95% "
    "interval over tasks or clusters of tasks; p by a paired permutation test{adjusted}. "
    "Better and worse: number of tasks in which the second succeeded more often and less often."
)
_DETECTABLE = (
    "Detectable: the smallest difference in success that such a comparison detects with p < 0.05 at a power of 0.8. "
    "Smaller differences need more tasks or samples."
)


def _stops(run: Evaluated) -> Table:
    """Return the table of stop reasons, overall and by group, with the errors of failed episodes."""
    report = run.report
    worlds = report.by_world if len(report.by_world) > 1 else {}
    grouped = {"all": report.overall, **worlds, **report.by_category}
    if list(report.by_difficulty.values()) != list(report.by_category.values()):
        grouped |= {f"difficulty {at}": by for at, by in report.by_difficulty.items()}
    ends = list(report.overall.stops)
    rows = tuple(
        (Cell(name), *(_counted(by.stops.get(end, 0), by.episodes) for end in ends)) for name, by in grouped.items()
    )
    faults = tuple(f"{count:,} episodes failed: {fault}" for fault, count in report.faults.items())
    return Table("How episodes ended", ("episodes", *ends), rows, faults)


def _counted(count: int, of: int) -> Cell:
    return Cell(f"{count:,}", f"{count / of:.1%}")


def facts(run: Evaluated) -> dict[str, dict[str, str]]:
    """Return the additional information on a run by heading: about the run itself, then settings, versions, usage."""
    loose = {name: value for name, value in run.about.items() if value and not isinstance(value, Mapping)}
    headed = {name: value for name, value in run.about.items() if value and isinstance(value, Mapping)}
    return {
        name.capitalize(): {key: _shown(value) for key, value in values.items()}
        for name, values in {"run": loose, **headed}.items()
        if values
    }


def _shown(value: object) -> str:
    """Format a value: text unchanged, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
