"""The plots of a report: success against allowed turns, pass@k with pass^k against k, and pass@k by turns and k.

In the first two, each environment has a panel and each run a color; in the third, each run has a panel. Plots are drawn
without a display and without matplotlib's global "current figure".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from agentgym_eval.metrics.intervals import Interval
from agentgym_eval.reports.evaluated import Evaluated, labels

TITLES = {
    "turns": "Success against the number of allowed turns",
    "k": "pass@k and pass^k against k",
    "turns_k": "pass@k by the number of allowed turns and k",
}
"""Titles by the file name of the plot."""
COLORS = ("#1f83cc", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8c6bb1", "#7f7f7f")
"""Close to the palette of Okabe and Ito, which is safe for color blindness, on light and dark backgrounds."""
_SHORT, _LONG = 36, 80
"""Lengths of legend labels in characters: up to the first, two fit side by side; beyond the second, they are cut."""
_LEGEND_ROW = 0.2
"""Height of a legend row in inches."""
_HALF = 0.5
"""Turns by which lines extend beyond the last one, so that the last step is visible."""
_LABELED = 8
"""Maximum number of labeled columns of a panel of `turns_k`."""
_LEVELS = 20
"""Number of colors of `turns_k`; with 50 or more, the color bar of an SVG would be an image."""
_INK, _PAPER = "#22262b", "#fefefe"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "figure.facecolor": _PAPER,
    "grid.alpha": 0.15,
    "grid.color": _INK,
    "axes.facecolor": "none",
    "legend.frameon": False,
}
"""matplotlib's settings for all plots of this project."""
_Draw = Callable[[Any, str, Evaluated, str], None]


def draw_curves(folder: Path, runs: Sequence[Evaluated]) -> dict[str, str]:
    """Draw the plots of `TITLES` as PNG and SVG into `folder`, and delete those of an earlier report without points.

    Args:
        folder: An existing folder.
        runs: At least one run.

    Returns:
        The SVG by the name of the plot, for plots with points; `k` and `turns_k` need two values of k.
    """
    from matplotlib import rc_context

    drawn: dict[str, str] = {}
    with rc_context(STYLE):
        for name, figure in {"turns": _turns(runs), "k": _passes(runs), "turns_k": _maps(runs)}.items():
            png, svg = (folder / f"{name}.{kind}" for kind in ("png", "svg"))
            if figure:
                _save(figure, png, svg)
                drawn[name] = svg.read_text(encoding="utf-8")
            else:
                png.unlink(missing_ok=True)
                svg.unlink(missing_ok=True)
    return drawn


def _save(figure: Any, png: Path, svg: Path) -> None:
    """Save a figure as PNG and SVG. Each is rendered once, unlike with `savefig`, and the files are deterministic."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasAgg(figure).print_png(png)
    figure.set_layout_engine("none")  # keep the layout computed for the PNG
    with rc_context({"svg.hashsalt": svg.name}):
        FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None})


def inline(svg: str, *, label: str) -> str:
    """Return an SVG of `draw_curves` as an inline element of a page, in the page's colors."""
    _, _, drawing = svg.partition("<svg")
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r'<g id="[^"]*"', "<g", drawing)  # group ids repeat across plots
    drawing = drawing.replace(_INK, "currentColor").replace(_PAPER, "none")
    return f'<svg role="img" aria-label="{escape(label)}"{drawing}'


def _turns(runs: Sequence[Evaluated]) -> Any:
    """Plot success within n actions; lines of runs with shorter episodes are extended with their last value."""
    last: dict[str, int] = {}
    for run in runs:
        last[run.world] = max((last.get(run.world, 0), *run.report.by_turns))

    def draw(axes: Any, name: str, run: Evaluated, colour: str) -> None:
        if run.report.by_turns:
            by_turns: dict[float, Interval] = {**run.report.by_turns}
            by_turns[last[run.world] + _HALF] = by_turns[max(by_turns)]
            _line(axes, by_turns, name, colour, drawstyle="steps-post")
        axes.set_xlabel("allowed turns")
        axes.locator_params(axis="x", integer=True)

    return _panels(runs, draw) if any(last.values()) else None


def _passes(runs: Sequence[Evaluated]) -> Any:
    """Plot pass@k, and dashed pass^k, for the values of k in the reports."""
    ks = sorted({k for run in runs for k in run.report.overall.pass_at})

    def draw(axes: Any, name: str, run: Evaluated, colour: str) -> None:
        overall = run.report.overall
        _line(axes, overall.pass_at, f"{name}, pass@k", colour, marker="o")
        _line(axes, overall.pass_hat, f"{name}, pass^k", colour, marker="s", linestyle="--")
        axes.set_xlabel("k")
        axes.set_xticks(ks)

    return _panels(runs, draw) if len(ks) > 1 else None


def _maps(runs: Sequence[Evaluated]) -> Any:
    """Plot pass@k of each run with two values of k as colors over allowed turns and k."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    named = [(name, run) for name, run in zip(_names(runs), runs, strict=True) if len(_known_ks(run)) > 1]
    if not named:
        return None
    columns = min(len(named), 2)
    rows = -(-len(named) // columns)
    figure = Figure(figsize=(6.4 * columns, 2.8 * rows), dpi=120, layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for empty in panels[len(named) :]:
        empty.remove()
    colours = ScalarMappable(Normalize(0, 1), colormaps["viridis"].resampled(_LEVELS))
    figure.colorbar(colours, ax=panels[: len(named)], label="pass@k")
    for axes, (name, run) in zip(panels, named, strict=False):
        ks = _known_ks(run)
        passes = [list(run.report.pass_by_turns[k].values()) for k in ks]
        axes.pcolormesh(passes, norm=colours.norm, cmap=colours.cmap)
        last = len(passes[0])
        labeled = range(last, 0, -max(1, -(-last // _LABELED)))
        for turn in labeled:
            for row, values in enumerate(passes):
                shade = "white" if values[turn - 1] < 1 / 2 else "black"
                label = f"{values[turn - 1]:.2f}"
                # The last of many columns is too narrow for its label to be centred.
                x, side = (turn, "right") if turn == last > _LABELED else (turn - _HALF, "center")
                axes.text(x, row + _HALF, label, ha=side, va="center", color=shade, size=8)
        axes.set_yticks([row + _HALF for row in range(len(ks))], [str(k) for k in ks])
        axes.set_xticks([turn - _HALF for turn in labeled], [str(turn) for turn in labeled])
        axes.set_title(_cut(f"{run.world}, {name}"), parse_math=False)
        axes.set(xlabel="allowed turns", ylabel="k")
    return figure


def _known_ks(run: Evaluated) -> list[int]:
    """Return the values of k for which the run has enough attempts, ascending."""
    return sorted(k for k, by_turns in run.report.pass_by_turns.items() if by_turns)


def _panels(runs: Sequence[Evaluated], draw: _Draw) -> Any:
    """Return a figure with a panel per environment, in which `draw` draws its runs, and one legend."""
    from matplotlib.figure import Figure

    worlds = list(dict.fromkeys(run.world for run in runs))
    columns = min(len(worlds), 2)
    rows = -(-len(worlds) // columns)
    figure = Figure(figsize=(6.4 * columns, 3.8 * rows), dpi=120, layout="constrained")
    panels = dict(zip(worlds, figure.subplots(rows, columns, squeeze=False).flat, strict=False))
    for empty in figure.axes[len(worlds) :]:
        empty.remove()
    for world, axes in panels.items():
        axes.set_title(world, parse_math=False)
        axes.set(ylim=(-0.02, 1.02), ylabel="share")
        axes.grid()
    names = _names(runs)
    colours = {name: COLORS[i % len(COLORS)] for i, name in enumerate(dict.fromkeys(names))}
    for name, run in zip(names, runs, strict=True):
        draw(panels[run.world], name, run, colours[name])
    _legend(figure)
    return figure


def _names(runs: Sequence[Evaluated]) -> list[str]:
    """Return the line labels: the policies, unless a policy occurs twice in a panel."""
    policies = [run.policy for run in runs]
    return policies if len({(run.world, run.policy) for run in runs}) == len(runs) else labels(runs)


def _line(
    axes: Any, points: Mapping[int, Interval] | Mapping[float, Interval], name: str, colour: str, **style: Any
) -> None:
    """Plot means as a line over a band of their 95% intervals."""
    known = {x: at for x, at in points.items() if not math.isnan(at.mean)}
    axes.plot(list(known), [at.mean for at in known.values()], color=colour, label=name, **style)
    step = "post" if "drawstyle" in style else None
    ends = [at.low for at in known.values()], [at.high for at in known.values()]
    axes.fill_between(list(known), *ends, color=colour, alpha=0.15, linewidth=0, step=step)


def _legend(figure: Any) -> None:
    """Add a legend below the panels, with each label once, and enlarge the figure by its height."""
    lines = {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}
    side_by_side = 2 if max(map(len, lines), default=0) <= _SHORT else 1
    figure.set_figheight(figure.get_figheight() + _LEGEND_ROW * -(-len(lines) // side_by_side))
    names = [_cut(name) for name in lines]
    legend = figure.legend(list(lines.values()), names, loc="outside lower left", ncols=side_by_side)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _cut(name: str) -> str:
    half = _LONG // 2
    return name if len(name) <= _LONG else f"{name[:half]}…{name[-half:]}"
