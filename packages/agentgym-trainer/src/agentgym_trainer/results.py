"""What a finished run ends with: the table before and after, the curve, the summary, and the next command to try."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_eval.intervals import Interval
from agentgym_eval.report import Figures, report
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from agentgym_trainer.config import Config, World
from agentgym_trainer.loop import MANNERS
from agentgym_trainer.run_folder import RunFolder

_SMOOTHED_OVER = 5
_Figures = dict[str, dict[int, Figures]]
"""By manner and step."""


def finish(config: Config, folder: RunFolder, console: Console, *, seconds: float) -> None:
    """Write `curve.png` and `summary.json` and show what came of the run."""
    overall, by_world = _figures(config, folder)
    _write_summary(config, folder, overall, by_world, seconds)
    draw_curve(folder, by_world)
    console.print(_table(config, overall, by_world))
    for line in (
        f"{config.steps} updates; this sitting took {seconds:.0f} s. The run: {folder.path}",
        f"Its curve: {folder.curve}",
        "Next, let the trained model play all test tasks:",
        *(f"  {_evaluate(config, world, folder.model)}" for world in config.worlds),
    ):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _evaluate(config: Config, world: World, model: Path) -> str:
    """The command that plays a world as it was trained on."""
    flags = [
        f"--env {world.env} --policy {shlex.quote(f'hf:{model}')} --split test --samples 4 --wrapper {world.wrapper}",
        f"--horizon {config.horizon.longest} --max-tokens {config.generation.max_tokens}",
        f"--temperature {config.generation.temperature:g}",
    ]
    flags += [] if world.instructions else ["--no-instructions"]
    # Options are Python literals, in which quotes are single ones as a rule.
    flags += ["--options", *(f'"{option}"' for option in world.options)] if world.options else []
    return " ".join(["uv run evaluate", *flags])


def _figures(config: Config, folder: RunFolder) -> tuple[_Figures, dict[str, _Figures]]:
    """Of all held-out episodes, and by world."""
    played = {
        (manner, step): folder.read_evaluation(step, manner) or []
        for manner in MANNERS
        for step in folder.evaluated_steps(manner)
    }

    def figures(world: str | None) -> _Figures:
        found: _Figures = {manner: {} for manner in MANNERS}
        for (manner, step), episodes in played.items():
            chosen = [episode for episode in episodes if world in (None, episode.env)]
            ks = config.evaluation.ks if manner == "sampled" else (1,)
            found[manner][step] = report(chosen, ks=ks, seed=config.seed).overall
        return found

    worlds = dict.fromkeys(episode.env for episodes in played.values() for episode in episodes)
    return figures(None), {world: figures(world) for world in worlds}


def _write_summary(
    config: Config, folder: RunFolder, overall: _Figures, by_world: dict[str, _Figures], seconds: float
) -> None:
    def record(figures: _Figures) -> dict[str, Any]:
        return {m: {str(step): f.to_dict() for step, f in by.items()} for m, by in figures.items()}

    summary = {
        "steps": config.steps,
        "seconds": round(seconds, 1),
        "evaluations": record(overall),
        "worlds": {world: record(figures) for world, figures in by_world.items()},
    }
    folder.summary.write_text(json.dumps(summary, indent=2) + "\n")


def _table(config: Config, overall: _Figures, by_world: dict[str, _Figures]) -> Table:
    steps, sampled = (0, config.steps), overall["sampled"]
    table = Table(
        title=f"{sampled[steps[1]].tasks} held-out test tasks, 95% intervals over tasks", title_justify="left"
    )
    for column in ("", "before", "after"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    how = {"sampled": f"sampled at {config.generation.temperature:g}", "greedy": "greedy"}
    for manner, by in overall.items():
        for k in by[steps[1]].pass_at:
            table.add_row(f"pass@{k}, {how[manner]}", *(_interval(by[step].pass_at[k]) for step in steps))
    for world, figures in by_world.items() if len(by_world) > 1 else ():
        for manner, by in figures.items():
            table.add_row(f"{world.rpartition('/')[2]}, {manner}", *(_interval(by[step].success) for step in steps))
    for name in ("score", "turns"):
        table.add_row(f"{name}, sampled", *(f"{getattr(sampled[step], name).mean:.3f}" for step in steps))
    table.add_row("failed episodes", *(str(sum(by[step].failed for by in overall.values())) for step in steps))
    return table


def _interval(at: Interval) -> str:
    return f"{at.mean:.3f} ({at.low:.3f} to {at.high:.3f})"


def draw_curve(folder: RunFolder, by_world: dict[str, _Figures]) -> Path:
    """Success over environment steps, a picture for each world, with the stages of the horizon marked."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    lines = list(folder.read_metrics())
    figure, rows = plt.subplots(
        len(by_world), figsize=(8, 4.5 * len(by_world)), layout="constrained", sharex=True, squeeze=False
    )
    for axes, (world, figures) in zip(rows[:, 0], by_world.items(), strict=True):
        _draw_training(axes, lines, world)
        _draw_evaluations(axes, {0: 0, **{line["step"]: line["env_steps"] for line in lines}}, figures)
        _mark_stages(axes, lines)
        axes.set(xlabel="environment steps", ylabel="success", ylim=(0, 1.02), title=world)
        axes.legend(loc="lower right")
        axes.grid(alpha=0.2)
        axes.label_outer()
    figure.savefig(folder.curve, dpi=130)
    plt.close(figure)
    return folder.curve


def _draw_training(axes: Any, lines: list[dict[str, Any]], world: str) -> None:
    played = [(line["env_steps"], line["worlds"][world]["success"]) for line in lines]
    steps, success = np.array([at for at in played if at[1] is not None], float).reshape(-1, 2).T
    axes.plot(steps, success, color="C0", alpha=0.25, linewidth=1)
    axes.plot(steps, _smoothed(success), color="C0", label="training tasks, sampled")


def _draw_evaluations(axes: Any, env_steps: dict[int, int], figures: _Figures) -> None:
    for manner, color in zip(MANNERS, ("C3", "C2"), strict=True):
        marks = [(env_steps[step], by.success) for step, by in figures[manner].items() if step in env_steps]
        means = [at.mean for _, at in marks]
        spread = [[at.mean - at.low for _, at in marks], [at.high - at.mean for _, at in marks]]
        axes.errorbar(
            [x for x, _ in marks], means, spread, color=color, marker="o", capsize=3, label=f"test tasks, {manner}"
        )


def _mark_stages(axes: Any, lines: list[dict[str, Any]]) -> None:
    """A line where each stage of the horizon begins, with its turns and, where the schedule chose it, the reason."""
    begins, number = 0, None
    for line in lines:
        stage = line["stage"]
        if stage["number"] != number:
            number = stage["number"]
            why = f" ({stage['why']})" if stage["why"] in ("plateau", "cut") else ""
            text = f"{line['horizon']} turns{why}"
            axes.axvline(begins, color="grey", linestyle=":", linewidth=1)
            axes.annotate(text, (begins, 1.0), (3, -8), textcoords="offset points", color="grey", size=8)
        begins = line["env_steps"]


def _smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the last few steps."""
    return np.array([values[max(0, i + 1 - _SMOOTHED_OVER) : i + 1].mean() for i in range(len(values))])
