"""Reports as a self-contained HTML page, without scripts or external resources, in light and dark mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from agentgym_eval.reports.cells import Table
from agentgym_eval.reports.evaluated import Evaluated, labels, view_commands
from agentgym_eval.reports.plots import TITLES, inline
from agentgym_eval.reports.tables import facts, groups


def page(
    runs: Sequence[Evaluated],
    tables: Sequence[Table],
    *,
    title: str,
    folder: Path,
    curves: Mapping[str, str],
) -> str:
    """Return the content of `report.html`; all text from runs is escaped.

    Args:
        runs: Runs in display order.
        tables: Tables at the start of the page, from `summary`.
        title: Title of the page.
        folder: Folder of the report, for the commands that view its episodes.
        curves: SVG by the plot's name, from `draw_curves`.
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
