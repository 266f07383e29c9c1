"""The page of `leaderboard.py`: what its runs came to, beside what the paper published."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentgym_eval.metrics.intervals import Interval
from agentgym_eval.reports import Evaluated
from agentgym_eval.reports.plots import draw_curves
from agentgym_trainer.config import OfflineConfig
from agentgym_trainer.recipes import RECIPES
from commands import TOOK, Training  # the files beside this one
from leaderboard_cells import KS, PLAYERS, WORLDS, Cell, World
from many_runs import commits, markdown, show
from rich.console import Console

_NOTHING = "–"
PUBLISHED = {
    "Qwen2.5-3B-Instruct": (10, 13.5, 14, 52.2, 1),
    "Qwen2.5-7B-Instruct": (9.8, 18.8, 42, 66.7, 1.5),
    "Qwen2.5-72B-Instruct": (12, 26.5, 77, 88.9, 9.5),
    "GPT-4o": (16, 26.75, 83, 86.67, 21),
    "Gemini-2.5-Pro": (28, 36.5, 94, 87.77, 12.5),
    "o3": (34, 49.5, 93, 94.44, 41.5),
    "AgentGym-RL-3B": (18, 25.75, 75, 93.33, 22.5),
    "AgentGym-RL-7B": (22, 34, 89, 92.22, 50.5),
    "ScalingInter-7B": (26, 38.25, 91, 96.67, 57),
}
"""Success in percent, in the order of `WORLDS`: arXiv 2509.08755. It gives neither intervals nor seeds."""

_EXAMPLE = "TextCraft"
"""Of whose commands the page tells."""


def matrix(cells: Sequence[Cell]) -> Iterator[dict[str, str]]:
    """Success in every world, ours and published."""
    for player in PLAYERS:
        mine = {cell.world.name: _interval(cell.report.overall.success) for cell in cells if cell.player == player}
        yield {"player": player, "source": "measured here"} | {at.name: mine.get(at.name, _NOTHING) for at in WORLDS}
    for model, figures in PUBLISHED.items():
        shown = {world.name: f"{percent:g}" for world, percent in zip(WORLDS, figures, strict=True)}
        yield {"player": model, "source": "published"} | shown


def details(cells: Sequence[Cell]) -> Iterator[dict[str, str]]:
    """The other figures of what was measured."""
    for cell in sorted(cells, key=lambda cell: WORLDS.index(cell.world)):
        by = cell.report.overall
        yield {
            "world": cell.world.name,
            "player": cell.player,
            "tasks": str(by.tasks),
            "episodes": str(by.episodes),
            "failed": str(by.failed),
            "clusters": str(by.success.clusters or _NOTHING),
            "ICC": _NOTHING if math.isnan(by.icc) else f"{by.icc:.2f}",
            "score": _interval(by.score),
            **{f"pass@{k}": _interval(by.pass_at[k]) if k in by.pass_at else _NOTHING for k in KS[1:]},
            "turns": f"{by.turns.mean:.1f}",
        }


def models(worlds: Sequence[World], runs: Path) -> Iterator[dict[str, str]]:
    """The small models: where from, how large, and how long that took."""
    for world in worlds:
        trainings = [Training(recipe, runs) for recipe in world.recipes]
        config = RECIPES[trainings[-1].recipe].config
        assert isinstance(config, OfflineConfig)
        took = [json.loads((training.path / TOOK).read_text()) for training in trainings]
        yield {
            "world": world.name,
            "recipes": ", then ".join(f"`{recipe}`" for recipe in world.recipes),
            "parameters": f"{_parameters(trainings[-1].path / 'model'):,}",
            "the world it was trained in": ", ".join(config.world.options) or "as it is played",
            "minutes of CPU": f"{sum(each['cpu_seconds'] for each in took) / 60:.0f}",
        }


def _parameters(model: Path) -> int:
    from safetensors import safe_open

    with safe_open(model / "model.safetensors", framework="np") as weights:
        shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118, it is no mapping
    return sum(map(math.prod, shapes))


def _interval(at: Interval) -> str:
    return f"{at.mean * 100:.1f} ({at.low * 100:.1f} to {at.high * 100:.1f})"


def write(cells: Sequence[Cell], worlds: Sequence[World], runs: Path, folder: Path, console: Console) -> None:
    """Write the page, its pictures and the figures, and show the table."""
    rows = list(matrix(cells))
    show("Success in percent, 95% intervals over clusters of tasks", rows, console)
    pictures = folder / "leaderboard"
    pictures.mkdir(parents=True, exist_ok=True)
    draw_curves(pictures, [Evaluated(cell.player, cell.world.name, cell.report) for cell in cells])
    example = max(cells, key=lambda cell: (bool(cell.trainings), cell.world.name == _EXAMPLE, cell.samples == 1))
    page = _PAGE.format(
        table=markdown(rows),
        details=markdown(list(details(cells))),
        models=markdown(list(models(worlds, runs))),
        differs="\n".join(f"- **{world.name}**: {world.differs}." for world in worlds),
        turns=", ".join(f"{world.name} {world.turns}" for world in worlds),
        example=f"{example.world.name}'s small model",
        commands="\n".join(_commands(example)),
        failed=sum(cell.report.overall.failed for cell in cells),
        commits=commits(cell.folder for cell in cells),
        episodes=sum(cell.report.overall.episodes for cell in cells),
    )
    (folder / "leaderboard.md").write_text(page, encoding="utf-8")
    (folder / "leaderboard.json").write_text(json.dumps(_record(cells, worlds, runs), indent=1) + "\n")


def _commands(cell: Cell) -> list[str]:
    """Everything that leads to its figures."""
    return [*(training.command for training in cell.trainings), cell.command]


def _record(cells: Sequence[Cell], worlds: Sequence[World], runs: Path) -> dict[str, Any]:
    measured = [
        {"player": cell.player, "world": cell.world.env, "commands": _commands(cell), **cell.report.overall.to_dict()}
        for cell in cells
    ]
    published = {
        model: dict(zip((world.name for world in WORLDS), figures, strict=True)) for model, figures in PUBLISHED.items()
    }
    return {
        "measured": measured,
        "models": list(models(worlds, runs)),
        "published": {"source": "arXiv 2509.08755", "success_percent": published},
    }


_PAGE = """# Leaderboard

```sh
uv run python benchmarks/leaderboard.py
uv run python benchmarks/leaderboard.py --report docs/results
```

Success in percent, with 95% intervals over clusters of tasks where we measured it. **Rows marked "published" are the
paper's** ([AgentGym-RL](https://arxiv.org/abs/2509.08755)), which gives neither intervals nor seeds. They were reached
in its worlds and not in ours, which have the same names and kinds of tasks and [differ](#what-differs-in-our-tasks): a
published figure beside one of ours doesn't tell which of two players is better. They show the range.

{table}

"oracle" is the world's own expert, "random" draws from the actions that the world lists (SearchQA lists none), and the
small models are our own, [trained from nothing](#the-small-models) on one thread of a CPU in minutes. Chance is no easy
opponent: it draws from what is possible, whereas a model has to write it.

Everybody has as many turns as in the last stage of the paper's training: {turns}.
The oracle fails where that isn't enough, and in SearchQA where the passages aren't found; the worlds' own limits are
[higher](../worlds.md).

## Against turns and attempts

![Success against the number of allowed turns](leaderboard/turns.png)

![pass@k and pass^k against k](leaderboard/k.png)

## The other figures

{details}

Clusters are the groups of like tasks ([which](../evaluation.md#intervals)) that intervals are over, and ICC is the
intra-class correlation of success in them: what part of its variance between tasks lies between clusters.

Of {episodes:,} episodes {failed:,} failed (the world broke, not the player); they are in no mean. The oracle and a
greedy model play every task once. Score, in percent as well, is what worlds pay for partial success too.

## The small models

{models}

They imitate experts' episodes of training tasks, in the form `bare` (a reply is an action) and without instructions,
and have read nothing else, not even English. They show what the commands do on a laptop, and not what language models
can do: what they learn in minutes is the form of actions and what often comes next, and hardly to copy a name that
stands before them. SearchQA's asks well-formed questions about things that nobody wanted to know; SciWorld's knows its
30 episodes by heart; WebArena's is at the end of its 4,096 tokens of context after some pages (`length`).

More on TextCraft's is in [learning from data](from-data.md); in four of BabyAI's levels a model that goes on by
reinforcement learning gets much further: the [quickstart](quickstart.md).

## What differs in our tasks

{differs}

In all of them success is exact, a failed episode is no score of 0, and no test task is a training task.

## The commands

The script runs ordinary commands, one after another, here at commit {commits}; all of them stand with their figures in
`leaderboard.json`. Those behind {example} are

```sh
{commands}
```
"""
