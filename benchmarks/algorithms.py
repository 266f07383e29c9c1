"""Compare all algorithm presets from the same warm starts on one environment, with equal environment steps.

    uv run python benchmarks/algorithms.py --processes 2
    uv run python benchmarks/algorithms.py --report docs/results

The presets are as published (`algorithms/presets.py` names the deviations). Everything else is the same: the
quickstart's environment, its small model from scratch and its warm start, a horizon of 12 turns, updates of 64 episodes
with four optimizer steps. The first command finishes all runs; the second writes a page, a picture and JSON from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_trainer.algorithms import PRESETS
from agentgym_trainer.config import CriticModel, Evaluation, Optimizer
from agentgym_trainer.curriculum.horizon import FixedHorizon
from harness import markdown, show, write_report
from outcomes import Outcome, interval, interval_record, interval_text, picture, run_or_report, seeds_text
from training_runs import EPISODES_64, Run, miniature, quickstart

ENV_STEPS = 12_000
SAMPLES = 4
TASKS = 96
BASE = replace(
    quickstart(),
    **EPISODES_64,
    horizon=FixedHorizon(12),
    optimizer=Optimizer(lr=5e-4, micro_tokens=4096),
    critic=CriticModel(where="head", lr=2e-3),
    # The curve is the success in training; held-out tasks are only played before and after.
    evaluation=Evaluation(tasks=1, samples=1, ks=(1,)),
    save_every=20,
)


def runs_of(out: Path, seeds: Sequence[int], *, quick: bool) -> list[Run]:
    """Return all runs, seed by seed."""
    base, budget, tasks = (miniature(BASE), 100, 6) if quick else (BASE, ENV_STEPS, TASKS)
    return [
        Run(
            name,
            seed,
            replace(base, algorithm=algorithm, seed=seed),
            budget,
            out / f"seed-{seed}" / name,
            SAMPLES,
            tasks,
        )
        for seed in seeds
        for name, algorithm in PRESETS.items()
    ]


def report(outcomes: Sequence[Outcome], folder: Path, command: str) -> None:
    """Write the page, the picture and JSON."""
    rows = [_row(found) for found in outcomes]
    show("Success on held-out tasks, sampled, before and after", rows)
    draw(outcomes, folder / "algorithms.png")
    flat = [found.method for found in outcomes if interval(found.after - found.before)[1] <= 0]
    page = _PAGE.format(
        table=markdown(rows),
        command=command,
        seeds=len(outcomes[0].seeds),
        tasks=outcomes[0].after.shape[1],
        samples=SAMPLES,
        steps=f"{ENV_STEPS:,}",
        verdict=f"No gain beyond chance: {', '.join(flat)}." if flat else "All intervals of the gain are above 0.",
        failed=sum(found.failed for found in outcomes),
    )
    write_report(folder, "algorithms", page, [_record(found) for found in outcomes])


def _row(found: Outcome) -> dict[str, str]:
    gain = found.after - found.before
    return {
        "algorithm": found.method,
        "before": f"{found.before.mean():.3f}",
        "after": interval_text(found.after),
        "gain": interval_text(gain, "+"),
        "each seed": seeds_text(gain, "+"),
        "updates": f"{found.updates:.0f}",
        "clipped": f"{np.mean([value for values in _metric(found, 'clip_fraction') for value in values]):.1%}",
        "last entropy": f"{np.mean([value for values in _metric(found, 'entropy') for value in values[-1:]]):.2f}",
    }


def _metric(found: Outcome, name: str) -> list[list[float]]:
    """Return the values of a metric for each seed."""
    return [[line[name] for line in lines if name in line] for lines in found.lines]


def _record(found: Outcome) -> dict[str, Any]:
    return {
        "algorithm": found.method,
        "seeds": found.seeds,
        "before": found.before.mean(1).tolist(),
        "after": found.after.mean(1).tolist(),
        "after_all": interval_record(found.after),
        "gain_all": interval_record(found.after - found.before),
        "updates": found.updates,
        "failed": found.failed,
        "training": [[(line["env_steps"], line["success"]) for line in lines] for lines in found.lines],
    }


def draw(outcomes: Sequence[Outcome], file: Path) -> None:
    """Draw the gains with their intervals, and those of each seed."""
    with picture(file, figsize=(8, 4.5)) as axes:
        for y, found in enumerate(outcomes):
            mean, low, high = interval(found.after - found.before)
            axes.errorbar(mean, y, xerr=[[mean - low], [high - mean]], color=f"C{y}", marker="o", capsize=4)
            gains = (found.after - found.before).mean(1)
            axes.plot(gains, [y] * len(gains), linestyle="", marker="|", color=f"C{y}", alpha=0.6)
        axes.axvline(0, color="grey", linewidth=1)
        axes.set_yticks(range(len(outcomes)), [found.method for found in outcomes])
        axes.invert_yaxis()
        axes.set(xlabel=f"gain in held-out success after {ENV_STEPS:,} environment steps")
        axes.grid(alpha=0.2)


_PAGE = """# All algorithms from the same warm starts

```sh
{command}
```

The quickstart's environment (BabyAI's `OneRoomS8`, `OpenRedDoor`, `OpenRedBlueDoors`, `UnlockLocal`), model (0.33M
parameters from scratch) and warm start, one per seed and the same for all; a horizon of 12 turns, 64 episodes and four
optimizer steps per update at a learning rate of 5e-4 (critic head: 2e-3), until {steps} turns have been played in
training, a third of the quickstart's. The presets are as published, without tuning. Before and after: {tasks} held-out
tasks, {samples} sampled episodes of each.

{table}

Means over {seeds} seeds with 95% intervals by a bootstrap over seeds and, within each, tasks; gains are paired by seed
and task. With {seeds} seeds, such intervals are too narrow, if anything, and don't rank similar algorithms. {verdict}
Failed episodes: {failed}. "clipped" is the mean share of tokens whose ratio was clipped.

![Gains](algorithms.png)
"""


def main() -> None:
    """Finish all runs, or report them."""
    run_or_report(__doc__, runs_of, report)


if __name__ == "__main__":
    main()
