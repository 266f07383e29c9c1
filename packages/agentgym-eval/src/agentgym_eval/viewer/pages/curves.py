"""The page with the curves of several training runs: success and every metric, by run or as means of groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

from agentgym_eval.util.errors import UsageError, did_you_mean, listed
from agentgym_eval.viewer.index.filters import search_terms
from agentgym_eval.viewer.index.metric_columns import metric_columns
from agentgym_eval.viewer.index.metrics import FileMetrics
from agentgym_eval.viewer.index.run_columns import differing_settings
from agentgym_eval.viewer.index.runs import Run
from agentgym_eval.viewer.pages.curve_chart import CurveChart, style_classes
from agentgym_eval.viewer.pages.curve_lines import (
    AXES,
    EVALUATED,
    Axis,
    Band,
    Line,
    RunCurves,
    mean_line,
    run_line,
    thinned,
)
from agentgym_eval.viewer.pages.run_groups import RunGroup, seed_groups, tag_groups
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.pages.training_metrics import CHARTED

GROUPS: Mapping[str, str] = {"settings": "settings (mean over seeds)", "tag": "tag", "none": "none"}
"""What runs are grouped by, with the names of the choices."""
BANDS: Mapping[Band, str] = {"t": "95% t-interval", "range": "smallest to largest", "none": "none"}
_MOST_POINTS = 60_000
"""Points on a page; charts beyond are named, and shown when they are searched for."""
_LINE_POINTS = (40, 400)
"""The fewest and most points to which a line is thinned; between them, what keeps a chart below `_CHART_POINTS`."""
_CHART_POINTS = 6_000
_MOST_SMOOTHING = 0.999
SUCCESS, GENERAL = "Success", "General"


@dataclass(frozen=True, slots=True)
class CurvesQuery:
    """What the page shows, as in the URL."""

    run: tuple[str, ...] = ()
    """The runs, by slug."""
    x: Axis = "step"
    group: str = "settings"
    """A key of `GROUPS`: what the runs have in common of which a line is the mean."""
    band: Band = "t"
    smooth: float = 0.0
    """The weight of the moving average, see `curve_lines.smooth`."""
    log: str = ""
    """`1` for logarithmic vertical axes."""
    metric: str = ""
    """Words that must all occur in the name or the title of a metric."""

    @classmethod
    def parse(cls, query: Mapping[str, str], runs: Sequence[str] = ()) -> CurvesQuery:
        """Parse a URL query, in which `run` occurs once for each of `runs`. Raises `UsageError` for invalid values."""
        names = [field.name for field in fields(cls)]
        for name in query:
            if name not in names:
                raise UsageError(f"There is no {name[:50]}; there are {listed(names)}.{did_you_mean(name, names)}")
        choices = {"x": tuple(AXES), "group": tuple(GROUPS), "band": get_args(Band), "log": ("1",)}
        values: dict[str, Any] = {name: value for name, value in query.items() if value and name != "run"}
        for name, allowed in choices.items():
            if values.get(name, allowed[0]) not in allowed:
                raise UsageError(f"{name} must be one of {', '.join(allowed)}, not {values[name][:50]}.")
        values["smooth"] = parse_smoothing(query)
        return cls(tuple(dict.fromkeys(runs)), **values)

    def values(self, **changes: str | int) -> dict[str, str | int]:
        """Return all values but the runs that differ from the default, for a link; `changes` override some."""
        mine = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "run"} | changes
        return {name: value for name, value in mine.items() if value != getattr(CurvesQuery(), name)}


def parse_smoothing(query: Mapping[str, str]) -> float:
    """Parse the weight of the smoothing in a URL query. Raises `UsageError`."""
    text = query.get("smooth") or "0"
    if not re.fullmatch(r"[01]?(\.\d{0,9})?", text, re.ASCII) or not 0 <= float(f"0{text}") <= _MOST_SMOOTHING:
        raise UsageError(f"smooth must be a number from 0 to {_MOST_SMOOTHING}, not {text[:50]}.")
    return float(f"0{text}")


@dataclass(frozen=True, slots=True)
class Legend:
    """An entry of the legend: a run, or a group of runs."""

    name: str
    style: int
    runs: tuple[Run, ...]

    @property
    def classes(self) -> str:
        """The classes of its colour and dashes."""
        return style_classes(self.style)

    @property
    def differing(self) -> list[str]:
        """The settings in which its runs differ, except the seed."""
        return [name for name in differing_settings(self.runs) if name != "seed"]


@dataclass(frozen=True, slots=True)
class Section:
    """Charts of metrics with a common prefix."""

    name: str
    charts: list[CurveChart]
    omitted: list[str]
    """The metrics for which the page has no space."""


def curves_page(site: Site, query: CurvesQuery) -> str:
    """Render the curves of the chosen runs; with none chosen, the form to choose them."""
    known = {run.slug: run for run in site.index.runs}
    chosen = [known[slug] for slug in query.run if slug in known]
    files = files_by_run(site.index.file_metrics())
    curves = {run.slug: run_curves(run, files.get(run.slug, [])) for run in chosen}
    drawn = [run for run in chosen if curves[run.slug].names()]
    groups = _groups(drawn, query.group)
    legend = [Legend(_name(group, drawn), style, group.runs) for style, group in enumerate(groups)]
    return site.render(
        "curves.html",
        query=query,
        legend=legend,
        sections=sections(legend, curves, query),
        axes=AXES,
        bands=BANDS,
        groupings=GROUPS,
        selected=len([run for run in chosen if run.kind == "train"]),
        choices=(choices := [run for run in site.index.runs if run.kind == "train"]),
        tagged={tag: [run.slug for run in choices if tag in run.tags] for tag in site.index.tags},
        missing=[slug for slug in query.run if slug not in known],
        empty=[run for run in chosen if not curves[run.slug].names()],
        without_axis=[run for run in drawn if curves[run.slug].axis(query.x) is None],
        grouped=any(len(entry.runs) > 1 for entry in legend),
    )


def _groups(runs: Sequence[Run], by: str) -> list[RunGroup]:
    if by == "settings":
        return seed_groups(runs)
    return tag_groups(runs) if by == "tag" else [RunGroup(run.label, (run,)) for run in runs]


def _name(group: RunGroup, runs: Sequence[Run]) -> str:
    """Return the name of a group in the legend: of a single run its label, with its path if another has the same, and
    after the tag if that is what groups runs.
    """
    run, *more = group.runs
    if more:
        return group.name
    unique = sum(other.label == run.label for other in runs) == 1
    label = run.label if unique else run.full_label
    return label if group.name == run.label else f"{group.name}: {label}"


def files_by_run(files: Iterable[FileMetrics]) -> dict[str, list[FileMetrics]]:
    """Sort the metrics of files by run."""
    by_run: dict[str, list[FileMetrics]] = {}
    for file in files:
        by_run.setdefault(file.run, []).append(file)
    return by_run


def run_curves(run: Run, files: Iterable[FileMetrics]) -> RunCurves:
    """Read the curves of a run: its metrics, and its evaluations, whose episodes are in `files`."""
    columns = metric_columns(run.path)
    evaluations: dict[str, dict[int, float]] = {}
    for name in columns.rows:
        if found := EVALUATED.fullmatch(name):
            split = run.split if found[1] == "held_out" else found[1]
            steps, values = columns.column(name)
            series = evaluations.setdefault(f"{split} tasks, {found[2]}", {})
            series.update(zip(map(int, steps), map(float, values), strict=True))
    success = {file.file: file.success for file in files}
    for file in run.files:
        value = success.get(file.slug)
        if file.part == "evaluation" and file.step is not None and value is not None:
            evaluations.setdefault(f"{file.split} tasks, {file.decoding}", {})[file.step] = value
    return RunCurves(columns, dict(sorted(evaluations.items())))


def sections(legend: Sequence[Legend], curves: Mapping[str, RunCurves], query: CurvesQuery) -> list[Section]:
    """Lay out a chart for each metric that matches the search, as long as the page has space."""
    evaluated = {name for each in curves.values() for name in each.evaluations}
    by_section: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for each in curves.values() for name in each.names()):
        if _matches(name, query.metric):
            by_section.setdefault(SUCCESS if name in evaluated else section_of(name), []).append(name)
    left, found = _MOST_POINTS, list[Section]()
    for section in sorted(by_section, key=_section_order):
        shown = Section(section, [], [])
        for name in sorted(by_section[section], key=lambda name: name != "success"):  # in training, then evaluations
            lines = chart_lines(legend, curves, name, query)
            points = sum(len(line.x) for line in lines)
            if not points:
                continue
            if points > left:
                shown.omitted.append(name)
                continue
            left -= points
            unit = (0.0, 1.0) if section == SUCCESS else None
            title = CHARTED.get(name, "")
            shown.charts.append(
                CurveChart(name, lines, title=title, x_label=AXES[query.x], log=bool(query.log), unit=unit)
            )
        found.append(shown)
    return [section for section in found if section.charts or section.omitted]


def chart_lines(
    legend: Sequence[Legend], curves: Mapping[str, RunCurves], metric: str, query: CurvesQuery
) -> list[Line]:
    """Return the lines of a chart that have points."""
    return prepared(_line(entry, curves, metric, query) for entry in legend)


def prepared(lines: Iterable[Line]) -> list[Line]:
    """Thin the lines that have points."""
    lines = [line for line in lines if len(line.x)]
    fewest, most = _LINE_POINTS
    limit = min(most, max(fewest, _CHART_POINTS // max(1, len(lines))))
    return [thinned(line, limit) for line in lines]


def _line(entry: Legend, curves: Mapping[str, RunCurves], metric: str, query: CurvesQuery) -> Line:
    runs = [curves[run.slug] for run in entry.runs]
    if len(runs) == 1:
        return run_line(entry.name, entry.style, runs[0], metric, query.x, query.smooth)
    return mean_line(entry.name, entry.style, runs, metric, query.x, query.band, query.smooth)


def section_of(name: str) -> str:
    """Return the section of a metric: its prefix before the first dot or slash."""
    prefix = re.split(r"[./]", name, maxsplit=1)[0]
    return SUCCESS if name == "success" else prefix if prefix != name else GENERAL


def _section_order(section: str) -> tuple[int, str]:
    first = {SUCCESS: 0, GENERAL: 1, "worlds": 3}  # with one environment, its metrics are those of the run again
    return first.get(section, 2), section


def _matches(name: str, text: str) -> bool:
    searched = f"{name}\n{CHARTED.get(name, '')}".lower()
    return all(part in searched for part in search_terms(text.lower()))
