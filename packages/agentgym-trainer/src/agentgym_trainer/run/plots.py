"""The plot of a run: success in every environment over training, and the loss of a run that trains on data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_eval.metrics.summary import SummaryMetrics
from agentgym_eval.reports.plots import COLORS, STYLE
from numpy.typing import NDArray

from agentgym_trainer.config import BaseConfig
from agentgym_trainer.kinds import kind_of
from agentgym_trainer.run.folder import DECODINGS, RunFolder

_SMOOTHED_OVER = 5
_TRAIN, _EVALUATED = COLORS[0], (COLORS[4], COLORS[2])
ByStep = dict[str, dict[int, SummaryMetrics]]
"""Metrics of evaluations by decoding and step."""


def draw_curve(config: BaseConfig, folder: RunFolder, found: Mapping[str, Mapping[str, ByStep]]) -> Path:
    """Plot every environment's success (metrics in `found` by split and environment) and return the image's path.

    The x axis is environment steps for RL, updates for a run that trains on data (whose loss is plotted, too), and
    models trained for AgentEvol.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    lines, kind = list(folder.read_metrics()), kind_of(config)
    worlds = list(dict.fromkeys(world for by_world in found.values() for world in by_world))
    rows = len(worlds) + kind.plots_loss
    height = 4.5 * rows  # inches
    with rc_context(STYLE):
        figure = Figure(figsize=(8, height))
        grid = figure.subplots(rows, sharex=True, squeeze=False)
        figure.subplots_adjust(left=0.09, right=0.98, top=1 - 0.35 / height, bottom=0.55 / height, hspace=0.15)
        for axes, world in zip(grid[:, 0], worlds, strict=False):
            if kind.plots_training:
                _draw_training(axes, lines, world)
                _mark_stages(axes, lines)
            at = {0: 0, **{line["step"]: line[kind.x] for line in lines}}
            for split, by_world in found.items():
                if world in by_world:
                    _draw_evaluations(axes, at, by_world[world], split)
            axes.set(ylabel="success", ylim=(0, 1.02), title=world)
            axes.legend(loc="lower right")
        if kind.plots_loss:
            _draw_loss(grid[-1, 0], lines)
        for axes in grid[:, 0]:
            axes.set(xlabel=kind.x_label)
            axes.grid()
            axes.locator_params(axis="x", integer=True)
            axes.label_outer()
        figure.savefig(folder.curve, dpi=130)
    return folder.curve


def _draw_loss(axes: Any, lines: list[dict[str, Any]]) -> None:
    # Skipped steps have no loss.
    losses = [(line["step"], line["loss"]) for line in lines if line.get("loss") is not None]
    steps, loss = np.array(losses, float).reshape(-1, 2).T
    axes.plot(steps, loss, color=_TRAIN, alpha=0.25, linewidth=1)
    axes.plot(steps, _smoothed(loss), color=_TRAIN)
    axes.set(ylabel="loss", ylim=(0, None))


def _draw_training(axes: Any, lines: list[dict[str, Any]], world: str) -> None:
    played = [(line["env_steps"], line["worlds"][world]["success"]) for line in lines]
    steps, success = np.array([at for at in played if at[1] is not None], float).reshape(-1, 2).T
    axes.plot(steps, success, color=_TRAIN, alpha=0.25, linewidth=1)
    axes.plot(steps, _smoothed(success), color=_TRAIN, label="training tasks, sampled")


def _draw_evaluations(axes: Any, env_steps: dict[int, int], metrics: ByStep, split: str) -> None:
    """Draw evaluations during training as a line, those on the test split as single markers."""
    look = {"linestyle": "none", "marker": "D"} if split == "test" else {"marker": "o"}
    for decoding, color in zip(DECODINGS, _EVALUATED, strict=True):
        marks = [(env_steps[step], by.success) for step, by in metrics[decoding].items() if step in env_steps]
        means = [at.mean for _, at in marks]
        spread = [[at.mean - at.low for _, at in marks], [at.high - at.mean for _, at in marks]]
        label = f"{split} tasks, {decoding}"
        axes.errorbar([x for x, _ in marks], means, spread, color=color, capsize=3, label=label, **look)


def _mark_stages(axes: Any, lines: list[dict[str, Any]]) -> None:
    """Draw a vertical line at the start of each horizon stage, with its turns and the reason if it wasn't fixed."""
    begins, number = 0, None
    for line in lines:
        stage = line["stage"]
        if stage["number"] != number:
            number = stage["number"]
            why = f" ({stage['why']})" if stage["why"] not in ("begin", "steps") else ""
            left = f", expert's last {stage['remaining']}" if stage.get("remaining") else ""
            text = f"{line['horizon']} turns{left}{why}"
            axes.axvline(begins, color="grey", linestyle=":", linewidth=1)
            axes.annotate(text, (begins, 1.0), (3, -8), textcoords="offset points", color="grey", size=8)
        begins = line["env_steps"]


def _smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the moving average over the last few steps."""
    return np.array([values[max(0, i + 1 - _SMOOTHED_OVER) : i + 1].mean() for i in range(len(values))])
