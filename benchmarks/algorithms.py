"""Compare the algorithm presets from the same warm starts on one environment, with equal environment steps.

    uv run python benchmarks/algorithms.py --processes 2
    uv run python benchmarks/algorithms.py --report docs/results

The presets are as published (`algorithms/presets.py` names the deviations). Everything else is the same: the
quickstart's environment, its small model from scratch and its warm start, a horizon of 12 turns, updates of 64 episodes
with four optimizer steps. The first command finishes all runs; the second writes a page, a picture and JSON from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_eval.metrics.comparison import holm
from agentgym_eval.metrics.seeds import over_seeds
from agentgym_trainer.algorithms import PRESETS
from agentgym_trainer.config import CriticModel, Evaluation, Optimizer
from agentgym_trainer.curriculum.horizon import FixedHorizon
from harness import markdown, show, write_report
from outcomes import Outcome, difference_text, picture, run_or_report, seeds_text
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
    page = _PAGE.format(
        table=markdown(rows),
        command=command,
        seeds=len(outcomes[0].seeds),
        tasks=outcomes[0].after.shape[1],
        samples=SAMPLES,
        steps=f"{ENV_STEPS:,}",
        verdict=_verdict(outcomes),
        compared=len(outcomes),
        presets=len(PRESETS),
        failed=sum(found.failed for found in outcomes),
    )
    write_report(folder, "algorithms", page, [_record(found) for found in outcomes])


def _verdict(outcomes: Sequence[Outcome]) -> str:
    """Return in words which gains and which differences between algorithms are detected."""
    gains_S = [(found.after - found.before).mean(1) for found in outcomes]
    flat = [found.method for found in outcomes if over_seeds(*_success(found)).difference.low <= 0]
    after = {found.method: _success(found)[1] for found in outcomes}
    pairs = {f"{b} minus {a}": (after[a], after[b]) for a, b in combinations(after, 2)}
    adjusted = holm({name: over_seeds(*pair).p for name, pair in pairs.items()})
    apart = [f"{name} {difference_text(*pairs[name])}, p {p:.3f}" for name, p in adjusted.items() if p < 0.05]
    best = max(after, key=lambda method: np.mean(after[method]))
    return (
        f"The gain is positive in {np.sum(np.array(gains_S) > 0)} of {np.size(gains_S)} runs.\n"
        f"Intervals that include 0: {', '.join(flat) or 'none'}. Of {len(pairs)} pairs of algorithms, a difference is "
        f"detected in these\n(p adjusted by Holm's method): {'; '.join(apart) or 'none'}.\n"
        f"The highest one, {best}, minus grpo is {difference_text(after['grpo'], after[best])}."
    )


def _success(found: Outcome) -> tuple[list[float], list[float]]:
    """Return the success of each seed before and after."""
    return found.before.mean(1).tolist(), found.after.mean(1).tolist()


def _row(found: Outcome) -> dict[str, str]:
    return {
        "algorithm": found.method,
        "before": f"{found.before.mean():.3f}",
        "after": f"{found.after.mean():.3f}",
        "gain": difference_text(*_success(found)),
        "each seed": seeds_text(found.after - found.before, "+"),
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
        "updates": found.updates,
        "failed": found.failed,
        "training": [[(line["env_steps"], line["success"]) for line in lines] for lines in found.lines],
    }


def draw(outcomes: Sequence[Outcome], file: Path) -> None:
    """Draw the gains with their intervals, and those of each seed."""
    with picture(file, figsize=(8, 4.5)) as axes:
        for y, found in enumerate(outcomes):
            at = over_seeds(*_success(found)).difference
            axes.errorbar(
                at.mean, y, xerr=[[at.mean - at.low], [at.high - at.mean]], color=f"C{y}", marker="o", capsize=4
            )
            gains = (found.after - found.before).mean(1)
            axes.plot(gains, [y] * len(gains), linestyle="", marker="|", markersize=12, color=f"C{y}")
        axes.axvline(0, color="grey", linewidth=1)
        axes.set_yticks(range(len(outcomes)), [found.method for found in outcomes])
        axes.invert_yaxis()
        axes.set(xlabel=f"gain in held-out success after {ENV_STEPS:,} environment steps")
        axes.grid(alpha=0.2)


_PAGE = """# Algorithms from the same warm starts

```sh
{command}
```

The quickstart's environment (BabyAI's `OneRoomS8`, `OpenRedDoor`, `OpenRedBlueDoors`, `UnlockLocal`), model (0.33M
parameters from scratch) and warm start, one per seed and the same for all; a horizon of 12 turns, 64 episodes and four
optimizer steps per update at a learning rate of 5e-4 (critic head: 2e-3), until {steps} turns have been played in
training, a third of the quickstart's. {compared} of the {presets} presets, as published, without tuning. Before and
after: {tasks} held-out tasks, {samples} sampled episodes of each.

{table}

Means over {seeds} seeds; gains are paired by seed, with 95% t-intervals over seeds. {verdict}
So few seeds don't rank the algorithms. Failed episodes: {failed}. "clipped" is the mean share of tokens whose ratio was
clipped.

![Gains](algorithms.png)

Points are means, horizontal lines their intervals, and ticks the seeds.
"""


def main() -> None:
    """Finish all runs, or report them."""
    run_or_report(__doc__, runs_of, report)


if __name__ == "__main__":
    main()
