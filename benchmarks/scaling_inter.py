"""Fixed short, fixed long, StepHorizon and AdaptiveHorizon from the same warm starts, matched in environment steps.

    uv run python benchmarks/scaling_inter.py --processes 2
    uv run python benchmarks/scaling_inter.py --report docs/results

A small model from scratch imitates a clumsy expert on three of BabyAI's levels that take the expert 5 to 10 turns, and
then learns by GRPO. Everything but the horizon is the same; every evaluation, in the course of training and at the
end, has the longest horizon, on test tasks that no method trains on. The first command runs what hasn't been run yet
(`--quick`: miniatures, which show that it works); the second reads the runs and writes a page, a picture and JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_trainer.config import Evaluation, Generation, Optimizer, RLConfig, WarmStart, WorldConfig
from agentgym_trainer.curriculum.horizon import AdaptiveHorizon, StepHorizon
from agentgym_trainer.recipes import RECIPES
from many_runs import (  # the file beside this one
    Figures,
    Outcome,
    Run,
    interval,
    markdown,
    miniature,
    run_or_report,
    show,
)
from rich.console import Console

SHORT, MIDDLE, LONG = 6, 12, 20
NEVER = 10**9
LEVELS = ("UnlockLocal", "OpenRedBlueDoors", "UnlockPickup")
ENV_STEPS = 20_000
SAMPLES = 2

BASE = replace(
    RECIPES["quickstart"].config,
    world=WorldConfig(
        "agentgym/BabyAI-v0", (f"levels={LEVELS}", "available_actions_in_text=False"), "bare", instructions=False
    ),
    scratch=replace(RECIPES["quickstart"].config.scratch, context=2048),
    generation=Generation(max_tokens=16, max_context=2048),
    optimizer=Optimizer(lr=7e-4, micro_tokens=4096),
    warm_start=WarmStart(episodes=900, noise=0.4, epochs=2, batch=16, lr=5e-3),
    horizon=StepHorizon((LONG,), NEVER),
    evaluation=Evaluation(tasks=48, samples=1, ks=(1,), every=6),
    tasks_per_step=8,
    group_size=8,
    epochs=1,
    minibatches=4,
    save_every=10,
)


def methods(every: int) -> dict[str, RLConfig]:
    """What is compared. A horizon that stays short is a schedule that never comes to its second stage, so that it is
    tested as the others are. As its episodes are shorter, it takes more updates, and is evaluated every so many more.
    """
    stages = (SHORT, MIDDLE, LONG)
    horizons = {
        f"fixed, {SHORT} turns": (StepHorizon((SHORT, LONG), NEVER), 2 * every),
        f"fixed, {LONG} turns": (StepHorizon((LONG,), NEVER), max(1, 2 * every // 3)),
        f"StepHorizon {SHORT}, {MIDDLE}, {LONG}": (StepHorizon(stages, 2 * every), every),
        f"AdaptiveHorizon {SHORT}, {MIDDLE}, {LONG}": (AdaptiveHorizon(stages, every, 1, 0.01, 0.0), every),
    }
    return {
        name: replace(BASE, horizon=horizon, evaluation=replace(BASE.evaluation, every=rhythm))
        for name, (horizon, rhythm) in horizons.items()
    }


def runs_of(out: Path, seeds: Sequence[int], *, quick: bool) -> list[Run]:
    """All runs, seed by seed."""
    env_steps = 300 if quick else ENV_STEPS
    found: list[Run] = []
    for seed in seeds:
        for number, (method, config) in enumerate(methods(2 if quick else 6).items()):
            config = miniature(config) if quick else config
            path = out / f"seed-{seed}" / ("short", "long", "step", "adaptive")[number]
            found.append(Run(method, seed, replace(config, seed=seed), env_steps, path, SAMPLES, 6 if quick else 0))
    return found


# The report.


def report(outcomes: Sequence[Outcome], folder: Path, console: Console, command: str) -> None:
    """Write the page, the picture and the figures, and show the table."""
    longest = outcomes[1]
    rows = [_row(found, longest) for found in outcomes]
    show("Success on held-out tasks, sampled, at 20 turns", rows, console)
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "scaling-inter.png"
    draw(outcomes, picture)
    page = _PAGE.format(
        table=markdown(rows),
        command=command,
        levels=", ".join(f"`{level}`" for level in LEVELS),
        seeds=len(longest.seeds),
        tasks=longest.after.shape[1],
        samples=SAMPLES,
        steps=f"{ENV_STEPS:,}",
        episodes=BASE.warm_start.episodes,
        noise=f"{BASE.warm_start.noise:.0%}",
        stages="; ".join(f"{found.method}: {_stages(found)}" for found in outcomes[2:]),
        failed=sum(found.failed for found in outcomes),
    )
    (folder / "scaling-inter.md").write_text(page, encoding="utf-8")
    (folder / "scaling-inter.json").write_text(json.dumps([_record(found) for found in outcomes], indent=1) + "\n")


def _row(found: Outcome, longest: Outcome) -> dict[str, str]:
    against = "–"
    if found is not longest:
        # Seeds and tasks are the same, so they are drawn together.
        against = "{:+.3f} ({:+.3f} to {:+.3f})".format(*interval(found.after - longest.after))
    return {
        "horizon": found.method,
        "warm start": f"{found.before.mean():.3f}",
        "at the end": "{:.3f} ({:.3f} to {:.3f})".format(*interval(found.after)),
        "each seed": ", ".join(f"{success:.3f}" for success in found.after.mean(1)),
        f"against {longest.method}": against,
        "turns": f"{found.turns:.1f}",
        "updates": f"{found.updates:.0f}",
    }


def _stages(found: Outcome) -> str:
    """At which environment steps the stages began, seed by seed."""
    by_seed = []
    for lines in found.lines:
        ends = [0, *(line["env_steps"] for line in lines)]
        begun = {line["horizon"]: ends[i] for i, line in reversed(list(enumerate(lines)))}
        by_seed.append(", ".join(f"{turns} turns from {begun[turns]:,}" for turns in sorted(begun)))
    return " / ".join(by_seed)


def _record(found: Outcome) -> dict[str, Any]:
    mean, low, high = interval(found.after)
    return {
        "method": found.method,
        "seeds": found.seeds,
        "before": found.before.mean(1).tolist(),
        "after": found.after.mean(1).tolist(),
        "after_all": {"mean": float(mean), "low": float(low), "high": float(high)},
        "turns": found.turns,
        "updates": found.updates,
        "failed": found.failed,
        "curves": [{"env_steps": x.tolist(), "success": y.mean(1).tolist()} for x, y in found.curves],
        "horizons": [[(line["env_steps"], line["horizon"]) for line in lines] for lines in found.lines],
    }


def draw(outcomes: Sequence[Outcome], picture: Path) -> None:
    """Held-out success over environment steps with 95% intervals over seeds and tasks; below, the horizon."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (above, below) = plt.subplots(
        2, 1, sharex=True, figsize=(8, 6), layout="constrained", gridspec_kw={"height_ratios": [4, 1]}
    )
    for n, found in enumerate(outcomes):
        x = np.linspace(0, min(steps[-1] for steps, _ in found.curves), 40)
        success_STX = np.array([_on_grid(x, steps, success) for steps, success in found.curves])
        mean, low, high = interval(success_STX, lambda drawn: drawn.mean((0, 1)))
        above.plot(x, mean, color=f"C{n}", label=found.method)
        above.fill_between(x, low, high, color=f"C{n}", alpha=0.12, linewidth=0)
        for lines in found.lines:
            at = [0, *(line["env_steps"] for line in lines)]
            below.stairs([line["horizon"] for line in lines], at, color=f"C{n}", baseline=None, alpha=0.7)
    above.set(ylabel="held-out success, sampled", ylim=(0, 1))
    above.legend(loc="upper left")
    above.grid(alpha=0.2)
    below.set(xlabel="environment steps in training", ylabel="turns", ylim=(0, LONG + 2))
    below.grid(alpha=0.2)
    figure.savefig(picture, dpi=130)
    plt.close(figure)


def _on_grid(x: Figures, steps: Figures, success_XT: Figures) -> Figures:
    """Each task's success between evaluations, tasks x grid."""
    return np.array([np.interp(x, steps, of_task) for of_task in success_XT.T])


_PAGE = """# ScalingInter-RL against fixed horizons

```sh
{command}
```

A model of 0.33M parameters from scratch imitates {episodes} episodes of an expert whose actions are random in {noise}
of the cases, on BabyAI's {levels}, which take the expert 5 to 10 turns. From that start, one per seed and
the same for all, GRPO goes on with 64 episodes per update until {steps} turns have been played in training. Only the
horizon differs. All are tested alike: {tasks} held-out tasks, {samples} sampled episodes of each, at most 20 turns.

{table}

Means over {seeds} seeds with 95% intervals by a bootstrap that draws seeds and, within each, tasks; differences are
paired by seed and task. With {seeds} seeds such intervals are, if anything, too narrow. Failed episodes: {failed}.

![Held-out success over environment steps](scaling-inter.png)

Lines are means over seeds of the evaluations in the course of training (48 tasks, one sampled episode each), the bands
95% intervals of the same kind. Below, each seed's horizon.

When the stages began, in environment steps, seed by seed. {stages}.

AdaptiveHorizon ends a stage by those evaluations, which play dev tasks; no method sees the test tasks before its end.
"""


if __name__ == "__main__":
    run_or_report(__doc__ or "", runs_of, report)
