"""The small charts on the page of a training run."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentgym_eval.metrics.failure_causes import KINDS, LABELS
from agentgym_eval.viewer.index.runs import Run
from agentgym_eval.viewer.pages.curve_chart import CurveChart
from agentgym_eval.viewer.pages.curve_lines import Line, RunCurves, run_line
from agentgym_eval.viewer.pages.curves import CurvesQuery, Legend, prepared, run_curves, sections
from agentgym_eval.viewer.pages.training_metrics import CHARTED

_ENV = re.compile(r"worlds\.(.+)\.success")


def run_charts(run: Run, query: CurvesQuery) -> list[CurveChart]:
    """Lay out the charts of the metrics that most runs need; with a search, of all metrics that match it.

    Charts whose lines have a single point are left out.
    """
    curves = run_curves(run, ())
    if query.metric:
        found = sections([Legend(run.label, 0, (run,))], {run.slug: curves}, query)
        charts = [chart for section in found for chart in section.charts]
    else:
        charts = [CurveChart(name, lines, log=bool(query.log)) for name, lines in _usual(curves, query)]
    return [chart for chart in charts if any(len(line.x) > 1 for line in chart.lines)]


def _usual(curves: RunCurves, query: CurvesQuery) -> Iterator[tuple[str, list[Line]]]:
    """Yield the title and the lines of each chart: failure causes, environments if several, and single metrics."""
    causes = [(LABELS[kind], f"failures.{kind}") for kind in KINDS]
    causes = [(label, name) for label, name in causes if curves.column(name)[1].any()]
    yield "Failure causes in training, as shares of episodes", _lines(curves, causes, query)
    envs = [(found[1].rpartition("/")[2], found[0]) for found in map(_ENV.fullmatch, curves.columns.rows) if found]
    if len(envs) > 1:
        yield "Success in training, by environment", _lines(curves, envs, query)
    for name, title in CHARTED.items():
        yield title, _lines(curves, [(title, name)], query)


def _lines(curves: RunCurves, named: list[tuple[str, str]], query: CurvesQuery) -> list[Line]:
    return prepared(
        run_line(label, style, curves, name, "step", query.smooth) for style, (label, name) in enumerate(named)
    )
