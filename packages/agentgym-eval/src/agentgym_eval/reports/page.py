"""A report as one HTML file: no script, nothing that is loaded from anywhere, light or dark as the reader has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from agentgym_eval.reports.evaluated import Evaluated, labels, view_commands
from agentgym_eval.reports.plots import TITLES, inline
from agentgym_eval.reports.tables import Table, facts, groups


def page(
    runs: Sequence[Evaluated],
    tables: Sequence[Table],
    *,
    title: str,
    folder: Path,
    curves: Mapping[str, str],
) -> str:
    """The text of `report.html`; whatever comes from runs is escaped.

    Args:
        runs: In the order in which they are to be read.
        tables: What the page begins with, as `summary` gives it.
        title: Of the page.
        folder: Of the report, for the commands that show its episodes.
        curves: SVG by the curve's name, as `draw_curves` gives them.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    templates = Environment(
        loader=PackageLoader("agentgym_eval", "reports"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    results, *compared = tables
    return templates.get_template("page.html").render(
        title=title,
        results=results,
        compared=compared,
        curves={TITLES[name]: Markup(inline(svg, label=TITLES[name])) for name, svg in curves.items()},
        wide=len({run.world for run in runs}) > 1,
        runs=[(name, list(groups(run)), facts(run)) for name, run in zip(labels(runs), runs, strict=True)],
        commands=view_commands(folder, runs),
    )
