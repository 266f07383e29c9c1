"""The page of a run: training curves, evaluation results and files of episodes, with links to the episodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentgym_eval.metrics.failure_causes import KINDS, ORACLE_KINDS
from agentgym_eval.metrics.intervals import Interval
from agentgym_eval.storage.distances import distances_file
from agentgym_eval.viewer.index.evaluation_report import read_report, read_usage, report_page
from agentgym_eval.viewer.index.metrics import FileMetrics
from agentgym_eval.viewer.index.run_columns import flat_settings
from agentgym_eval.viewer.index.runs import EpisodeFile, Run
from agentgym_eval.viewer.pages.chart import Chart, Point, Series
from agentgym_eval.viewer.pages.curves import CurvesQuery
from agentgym_eval.viewer.pages.run_charts import run_charts
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.pages.training_metrics import number, read_metrics, stages, warnings
from agentgym_eval.viewer.pages.words import percent, setting

_NO_QUERY = CurvesQuery()
_MAX_LINKED = 240
"""Maximum number of training steps in the curve that link to their episodes; evenly spaced if there are more."""


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file with its metrics."""

    file: EpisodeFile
    metrics: FileMetrics
    success: Interval | None
    """None for training data and rollouts, where an interval isn't meaningful."""


@dataclass(frozen=True, slots=True)
class CauseTable:
    """How many episodes of each file failed for each cause."""

    kinds: list[str]
    """The causes that occurred, in display order."""
    rows: list[tuple[FileRow, dict[str, int]]]
    unmeasured: set[str]
    """Slugs of files without the expert's distances, without which `ORACLE_KINDS` are not told from budgets, if others
    of the table have them."""

    @classmethod
    def of(cls, files: list[FileRow], counts: Mapping[str, dict[str, int]]) -> CauseTable:
        """Make the table of the files with unsuccessful episodes."""
        rows = [(row, counts[row.file.slug]) for row in files if row.file.slug in counts]
        kinds = [kind for kind in KINDS if any(kind in by for _, by in rows)]
        unmeasured = {row.file.slug for row, _ in rows if not distances_file(row.file.path).exists()}
        return cls(kinds, rows, set() if ORACLE_KINDS.isdisjoint(kinds) else unmeasured)

    def is_known(self, row: FileRow, kind: str) -> bool:
        """Return whether the number of episodes of a file with this cause is known."""
        return kind not in ORACLE_KINDS or row.file.slug not in self.unmeasured


def run_page(site: Site, slug: str, query: CurvesQuery = _NO_QUERY) -> str:
    """Render the page of a run; `query` has the smoothing and the search of its small charts. Raises `NotFound`."""
    run = site.index.run(slug)
    metrics = {file.file: file for file in site.index.file_metrics() if file.run == slug}
    rows = (_file_row(site, run, file, metrics[file.slug]) for file in run.files if file.slug in metrics)
    files = sorted(rows, key=_latest_first)
    groups = site.index.groups(slug, files[0].file.slug) if run.kind == "evaluate" and files else {}
    shown = [row for row in files if row.file.part != "rollouts"]
    return site.render(
        "run.html",
        run=run,
        metrics=site.index.run_metrics().get(slug),
        files=shown,
        causes=CauseTable.of(shown, site.index.causes(slug)),
        rollouts=[row for row in files if row.file.part == "rollouts"],
        last={
            (row.file.split, row.file.decoding): row.file.slug
            for row in reversed(files)
            if row.file.part == "evaluation"
        },
        groups=groups,
        report=read_report(run),
        report_page=report_page(run),
        usage=read_usage(run),
        stops=[] if run.kind == "train" else site.index.facets(slug)["stop"],
        curve=_curve(site, run, files),
        charts=run_charts(run, query),
        query=query,
        warnings=warnings(read_metrics(run)),
        settings=[(name, setting(value)) for name, value in flat_settings(run.settings).items()],
        others=site.index.runs_with_common_tasks(slug),
    )


def _file_row(site: Site, run: Run, file: EpisodeFile, metrics: FileMetrics) -> FileRow:
    with_interval = file.part in ("evaluation", "played")
    return FileRow(file, metrics, site.index.success(run.slug, file.slug) if with_interval else None)


def _latest_first(row: FileRow) -> tuple[bool, int, str]:
    step = row.file.step
    return step is None, -(step or 0), row.file.slug


def _curve(site: Site, run: Run, files: list[FileRow]) -> Chart | None:
    """Chart the success by training step; None for runs without training steps."""
    lines = read_metrics(run)
    splits = dict.fromkeys((run.split, "test"))
    evaluations = [
        _evaluation_series(site, run, split, decoding, files, lines)
        for split in splits
        for decoding in ("sampled", "greedy")
    ]
    if not lines and not any(series.points for series in evaluations):
        return None
    rollouts = {row.file.step: row.file for row in files if row.file.part == "rollouts"}
    successes = _training_successes(lines)
    every = max(1, -(-len(successes) // _MAX_LINKED))
    points = [
        _training_point(site, run, step, success, rollouts if at % every == 0 or at == len(successes) - 1 else {})
        for at, (step, success) in enumerate(successes)
    ]
    bands = stages(lines)
    series = [Series("in training", points), *evaluations]
    return Chart("Success", series, bands if len(bands) > 1 else (), unit=(0.0, 1.0))


def _training_successes(lines: list[dict[str, Any]]) -> list[tuple[int, float]]:
    """Return the success in training by step, NaN where it is recorded as null; of a repeated step, the last one."""
    found: dict[int, float] = {}
    for record in lines:
        success = number(record, "success")
        success = number(record, "sampled", "success") if success is None else success
        if success is not None:
            found[record["step"]] = success
        elif "success" in record:
            found[record["step"]] = math.nan
    return sorted(found.items())


def _training_point(
    site: Site, run: Run, step: int, success: float, rollouts: Mapping[int | None, EpisodeFile]
) -> Point:
    """Make the point of a training step, with a link to its rollouts if there are any."""
    file = rollouts.get(step)
    link = site.links.episodes(run=run.slug, file=file.slug) if file else ""
    return Point(step, success, f"step {step}: {percent(success)} in training", link=link)


def _evaluation_series(
    site: Site, run: Run, split: str, decoding: str, files: list[FileRow], lines: list[dict[str, Any]]
) -> Series:
    """Chart the evaluations on a split with one decoding method; with intervals if their episodes are available."""
    points: dict[int, Point] = {}
    for record in lines:
        values = [number(record, name, decoding) for name in (split, "held_out")]
        success = next((value for value in values if value is not None and split == run.split), None)
        if success is not None:
            label = f"step {record['step']}: {percent(success)} on {split} tasks, {decoding}"
            points[record["step"]] = Point(record["step"], success, label)
    for row in files:
        file, success = row.file, row.success
        in_series = file.part == "evaluation" and (file.split, file.decoding) == (split, decoding)
        if in_series and file.step is not None and success and success.tasks:
            interval = f"{percent(success.mean)} ({percent(success.low)} to {percent(success.high)})"
            label = f"step {file.step}: {interval} on {split} tasks, {decoding}"
            link = site.links.episodes(run=run.slug, file=file.slug)
            points[file.step] = Point(file.step, success.mean, label, success.low, success.high, link)
    return Series(f"{split} tasks, {decoding}", [points[step] for step in sorted(points)])
