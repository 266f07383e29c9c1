"""What a finished run ends with: the table before and after, the curve, the summary, and the next command to try."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_eval.report import Figures, report
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from agentgym_trainer.config import Config
from agentgym_trainer.loop import MANNERS
from agentgym_trainer.run_folder import RunFolder

_SMOOTHED_OVER = 5


def finish(config: Config, folder: RunFolder, console: Console, *, seconds: float) -> None:
    """Write `curve.png` and `summary.json` and show what came of the run."""
    figures = _figures(config, folder)
    _write_summary(config, folder, figures, seconds)
    draw_curve(config, folder, figures)
    console.print(_table(config, figures))
    world, model = config.world, folder.model
    flags = f"--wrapper {world.wrapper} --horizon {config.horizon.longest} --max-tokens {config.generation.max_tokens}"
    flags += f" --temperature {config.generation.temperature:g}"
    flags += "" if world.instructions else " --no-instructions"
    options = " ".join(f'"{option}"' for option in world.options)
    flags += f" --options {options}" if options else ""
    for line in (
        f"{config.steps} updates; this sitting took {seconds:.0f} s. The run: {folder.path}",
        f"Its curve: {folder.curve}",
        "Next, let the trained model play all test tasks:",
        f"  uv run evaluate --env {world.env} --policy hf:{model} --split test --samples 4 {flags}",
    ):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _figures(config: Config, folder: RunFolder) -> dict[str, dict[int, Figures]]:
    """By manner and step."""
    found: dict[str, dict[int, Figures]] = {}
    for manner in MANNERS:
        ks = config.evaluation.ks if manner == "sampled" else (1,)
        found[manner] = {
            step: report(folder.read_evaluation(step, manner) or [], ks=ks, seed=config.seed).overall
            for step in folder.evaluated_steps(manner)
        }
    return found


def _write_summary(config: Config, folder: RunFolder, figures: dict[str, dict[int, Figures]], seconds: float) -> None:
    record: dict[str, Any] = {
        "steps": config.steps,
        "seconds": round(seconds, 1),
        "evaluations": {m: {str(step): f.to_dict() for step, f in by.items()} for m, by in figures.items()},
    }
    folder.summary.write_text(json.dumps(record, indent=2) + "\n")


def _table(config: Config, figures: dict[str, dict[int, Figures]]) -> Table:
    last, sampled = config.steps, figures["sampled"]
    table = Table(title=f"{sampled[last].tasks} held-out test tasks, 95% intervals over tasks", title_justify="left")
    for column in ("", "before", "after"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for manner, by in figures.items():
        for k in by[last].pass_at:
            cells = [f"{at.mean:.3f} ({at.low:.3f} to {at.high:.3f})" for at in (by[0].pass_at[k], by[last].pass_at[k])]
            how = f"sampled at {config.generation.temperature:g}" if manner == "sampled" else "greedy"
            table.add_row(f"pass@{k}, {how}", *cells)
    for name in ("score", "turns"):
        cells = [f"{getattr(sampled[step], name).mean:.3f}" for step in (0, last)]
        table.add_row(f"{name}, sampled", *cells)
    table.add_row("failed episodes", *(str(sum(by[step].failed for by in figures.values())) for step in (0, last)))
    return table


def draw_curve(config: Config, folder: RunFolder, figures: dict[str, dict[int, Figures]]) -> Path:
    """Success over environment steps, with the stages of the horizon marked."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    lines = [line for line in folder.read_metrics() if line["success"] is not None]
    steps = np.array([line["env_steps"] for line in lines])
    at_step = {0: 0, **{line["step"]: line["env_steps"] for line in lines}}
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    success = np.array([line["success"] for line in lines])
    axes.plot(steps, success, color="C0", alpha=0.25, linewidth=1)
    axes.plot(steps, _smoothed(success), color="C0", label="training tasks, sampled")
    for manner, color in zip(MANNERS, ("C3", "C2"), strict=True):
        marks = [(at_step[s], f.success) for s, f in figures[manner].items() if s in at_step]
        means = [at.mean for _, at in marks]
        spread = [[at.mean - at.low for _, at in marks], [at.high - at.mean for _, at in marks]]
        axes.errorbar(
            [x for x, _ in marks], means, spread, color=color, marker="o", capsize=3, label=f"test tasks, {manner}"
        )
    _mark_stages(axes, lines)
    axes.set(xlabel="environment steps", ylabel="success", ylim=(0, 1.02), title=f"{config.world.env}")
    axes.legend(loc="lower right")
    axes.grid(alpha=0.2)
    figure.savefig(folder.curve, dpi=130)
    plt.close(figure)
    return folder.curve


def _mark_stages(axes: Any, lines: list[dict[str, Any]]) -> None:
    begins, horizon = 0, None
    for line in lines:
        if line["horizon"] != horizon:
            horizon = line["horizon"]
            axes.axvline(begins, color="grey", linestyle=":", linewidth=1)
            axes.annotate(f"{horizon} turns", (begins, 1.0), (3, -8), textcoords="offset points", color="grey", size=8)
        begins = line["env_steps"]


def _smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the last few steps."""
    return np.array([values[max(0, i + 1 - _SMOOTHED_OVER) : i + 1].mean() for i in range(len(values))])
