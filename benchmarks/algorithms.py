"""Every algorithm from the same warm starts on one world, matched in environment steps: success before and after.

    uv run python benchmarks/algorithms.py --processes 2
    uv run python benchmarks/algorithms.py --report docs/results

The presets are as published (`algorithms/presets.py` says so, and what differs), and all else is the same for all: the
quickstart's world, its small model from scratch, its warm start, a horizon of 12 turns, batches of 64 episodes, four
optimizer steps each. The first command runs what hasn't been run yet (`--quick`: miniatures, which show that it works);
the second reads the runs and writes a page, a picture and JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_trainer.algorithms import PRESETS
from agentgym_trainer.config import CriticModel, Evaluation, Optimizer, RLConfig
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.recipes import RECIPES
from many_runs import (  # the file beside this one
    Outcome,
    Run,
    interval,
    markdown,
    miniature,
    run_or_report,
    show,
)
from rich.console import Console

ENV_STEPS = 12_000
SAMPLES = 4
TASKS = 96
BASE = replace(
    RECIPES["quickstart"].config,
    horizon=FixedHorizon(12),
    optimizer=Optimizer(lr=5e-4, micro_tokens=4096),
    critic=CriticModel(where="head", lr=2e-3),
    # Success over time is that of training; the test tasks are played at both ends.
    evaluation=Evaluation(tasks=1, samples=1, ks=(1,)),
    tasks_per_step=8,
    group_size=8,
    epochs=1,
    minibatches=4,
    save_every=20,
)


def runs_of(out: Path, seeds: Sequence[int], *, quick: bool) -> list[Run]:
    """All runs, seed by seed."""
    base: RLConfig = miniature(BASE) if quick else BASE
    return [
        Run(
            method,
            seed,
            replace(base, algorithm=algorithm, seed=seed),
            100 if quick else ENV_STEPS,
            out / f"seed-{seed}" / method,
            SAMPLES,
            6 if quick else TASKS,
        )
        for seed in seeds
        for method, algorithm in PRESETS.items()
    ]


def report(outcomes: Sequence[Outcome], folder: Path, console: Console, command: str) -> None:
    """Write the page, the picture and the figures, and show the table."""
    rows = [_row(found) for found in outcomes]
    show("Success on held-out tasks, sampled, before and after", rows, console)
    folder.mkdir(parents=True, exist_ok=True)
    draw(outcomes, folder / "algorithms.png")
    flat = [found.method for found in outcomes if interval(found.after - found.before)[1] <= 0]
    page = _PAGE.format(
        table=markdown(rows),
        command=command,
        seeds=len(outcomes[0].seeds),
        tasks=outcomes[0].after.shape[1],
        samples=SAMPLES,
        steps=f"{ENV_STEPS:,}",
        verdict=f"No gain beyond chance: {', '.join(flat)}." if flat else "All gain, each interval above 0.",
        failed=sum(found.failed for found in outcomes),
    )
    (folder / "algorithms.md").write_text(page, encoding="utf-8")
    (folder / "algorithms.json").write_text(json.dumps([_record(found) for found in outcomes], indent=1) + "\n")


def _row(found: Outcome) -> dict[str, str]:
    return {
        "algorithm": found.method,
        "before": f"{found.before.mean():.3f}",
        "after": "{:.3f} ({:.3f} to {:.3f})".format(*interval(found.after)),
        "gain": "{:+.3f} ({:+.3f} to {:+.3f})".format(*interval(found.after - found.before)),
        "each seed": ", ".join(f"{gain:+.3f}" for gain in (found.after - found.before).mean(1)),
        "updates": f"{found.updates:.0f}",
        "clip_fraction": f"{_mean(found, 'clip_fraction'):.1%}",
        "entropy, last": f"{_last(found, 'entropy'):.2f}",
    }


def _mean(found: Outcome, name: str) -> float:
    """Of a metric over the updates of all seeds."""
    return float(np.mean([line[name] for lines in found.lines for line in lines if name in line]))


def _last(found: Outcome, name: str) -> float:
    return float(np.mean([[line[name] for line in lines if name in line][-1] for lines in found.lines]))


def _record(found: Outcome) -> dict[str, Any]:
    (after, low, high), (gain, least, most) = interval(found.after), interval(found.after - found.before)
    return {
        "algorithm": found.method,
        "seeds": found.seeds,
        "before": found.before.mean(1).tolist(),
        "after": found.after.mean(1).tolist(),
        "after_all": {"mean": float(after), "low": float(low), "high": float(high)},
        "gain_all": {"mean": float(gain), "low": float(least), "high": float(most)},
        "updates": found.updates,
        "failed": found.failed,
        "training": [[(line["env_steps"], line["success"]) for line in lines] for lines in found.lines],
    }


def draw(outcomes: Sequence[Outcome], picture: Path) -> None:
    """Gains with their intervals, and each seed's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
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
    figure.savefig(picture, dpi=130)
    plt.close(figure)


_PAGE = """# Every algorithm from the same start

```sh
{command}
```

The quickstart's world (BabyAI's `OneRoomS8`, `OpenRedDoor`, `OpenRedBlueDoors`, `UnlockLocal`), model (0.33M parameters
from scratch) and warm start, one per seed and the same for all; a horizon of 12 turns, 64 episodes and four optimizer
steps per update at a learning rate of 5e-4 (the critic's head 2e-3), until {steps} turns have been played in training:
a third of what the quickstart plays. The presets are as published, with nothing tuned. Before and after: {tasks}
held-out tasks, {samples} sampled episodes of each.

{table}

Means over {seeds} seeds with 95% intervals by a bootstrap that draws seeds and, within each, tasks; gains are paired by
seed and task. With {seeds} seeds such intervals are, if anything, too narrow, and no ranking of neighbours. {verdict}
Failed episodes: {failed}. "clip_fraction" is the mean share of tokens whose ratio was clipped.

![Gains](algorithms.png)
"""


if __name__ == "__main__":
    run_or_report(__doc__ or "", runs_of, report)
