"""Writing the files of a report into a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentgym_envs.util.files import write_whole

from agentgym_eval.metrics.comparison import Comparison
from agentgym_eval.metrics.seeds import AcrossSeeds
from agentgym_eval.reports.evaluated import Evaluated, as_json
from agentgym_eval.reports.markdown import markdown
from agentgym_eval.reports.page import page
from agentgym_eval.reports.plots import draw_curves
from agentgym_eval.reports.tables import summary
from agentgym_eval.storage.store import write_json


def write_reports(
    folder: Path,
    runs: Sequence[Evaluated],
    comparisons: Sequence[Comparison] = (),
    across: AcrossSeeds | None = None,
    *,
    title: str,
) -> tuple[Path, ...]:
    """Write `report.json`, `report.md`, `report.html` and the plots (`plots.TITLES`; PNG and SVG) into `folder`.

    Args:
        folder: Existing folder of the run or runs.
        runs: At least one run, in display order.
        comparisons: Comparisons of these runs, if any.
        across: Their comparison over training seeds.
        title: Title of the report.

    Returns:
        The written files, the page first. Plots without points are omitted.

    Raises:
        OSError: If the folder can't be written to.
    """
    write_json(folder / "report.json", as_json(runs, comparisons, across))
    curves = draw_curves(folder, runs)
    compared = list(summary(runs, comparisons, across))
    write_whole(folder / "report.md", markdown(runs, compared, title=title, folder=folder, pictures=list(curves)))
    write_whole(folder / "report.html", page(runs, compared, title=title, folder=folder, curves=curves))
    pictures = [f"{name}.{kind}" for name in curves for kind in ("png", "svg")]
    return tuple(folder / name for name in ("report.html", "report.md", "report.json", *pictures))
