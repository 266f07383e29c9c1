"""Compare fixed horizons, StepHorizon and AdaptiveHorizon from the same warm starts, with equal environment steps.

    uv run python benchmarks/scaling_inter.py --processes 2
    uv run python benchmarks/scaling_inter.py --report docs/results

A small model from scratch imitates a noisy expert on three levels of BabyAI that take the expert 5 to 10 turns, and is
then trained by GRPO. Only the horizon differs. All evaluations have the longest horizon. The first command finishes all
runs; the second writes a page, a picture and JSON from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_trainer.config import Evaluation, Generation, Optimizer, RLConfig, WarmStart, WorldConfig
from agentgym_trainer.curriculum.horizon import AdaptiveHorizon, StepHorizon
from harness import markdown, show, write_report
from outcomes import (
    Outcome,
    Values,
    difference_text,
    interval,
    interval_record,
    interval_text,
    picture,
    run_or_report,
    seeds_text,
)
from training_runs import EPISODES_64, Run, miniature, quickstart

SHORT, MIDDLE, LONG = 6, 12, 20
NEVER = 10**9
LEVELS = ("UnlockLocal", "OpenRedBlueDoors", "UnlockPickup")
ENV_STEPS = 20_000
SAMPLES = 2

BASE = replace(
    quickstart(),
    **EPISODES_64,
    world=WorldConfig(
        "agentgym/BabyAI-v0", (f"levels={LEVELS}", "available_actions_in_text=False"), "bare", instructions=False
    ),
    scratch=replace(quickstart().scratch, context=2048),
    generation=Generation(max_tokens=16, max_context=2048),
    optimizer=Optimizer(lr=7e-4, micro_tokens=4096),
    warm_start=WarmStart(episodes=900, noise=0.4, imitate_noise=True, epochs=2, batch=16, lr=5e-3),
    horizon=StepHorizon((LONG,), NEVER),
    evaluation=Evaluation(tasks=48, samples=1, ks=(1,), every=6),
    save_every=10,
)


def methods(every: int) -> dict[str, RLConfig]:
    """Return the configurations by name.

    The fixed short horizon is a schedule that never reaches its second stage, so that evaluations have the longest
    horizon. Shorter episodes give more updates, so evaluations are further apart.
    """
    stages = (SHORT, MIDDLE, LONG)
    horizons = {
        f"fixed, {SHORT} turns": (StepHorizon((SHORT, LONG), NEVER), 2 * every),
        f"fixed, {LONG} turns": (StepHorizon((LONG,), NEVER), max(1, 2 * every // 3)),
        f"StepHorizon {SHORT}, {MIDDLE}, {LONG}": (StepHorizon(stages, 2 * every), every),
        f"AdaptiveHorizon {SHORT}, {MIDDLE}, {LONG}": (AdaptiveHorizon(stages, every, 1, 0.01, 0.0), every),
    }
    return {
        name: replace(BASE, horizon=horizon, evaluation=replace(BASE.evaluation, every=interval_updates))
        for name, (horizon, interval_updates) in horizons.items()
    }


def runs_of(out: Path, seeds: Sequence[int], *, quick: bool) -> list[Run]:
    """Return all runs, seed by seed."""
    env_steps, tasks = (300, 6) if quick else (ENV_STEPS, 0)
    found: list[Run] = []
    for seed in seeds:
        folders = ("short", "long", "step", "adaptive")
        for folder, (method, config) in zip(folders, methods(2 if quick else 6).items(), strict=True):
            config = replace(miniature(config) if quick else config, seed=seed)
            found.append(Run(method, seed, config, env_steps, out / f"seed-{seed}" / folder, SAMPLES, tasks))
    return found


def report(outcomes: Sequence[Outcome], folder: Path, command: str) -> None:
    """Write the page, the picture and JSON."""
    longest = outcomes[1]
    rows = [_row(found, longest) for found in outcomes]
    show(f"Success on held-out tasks, sampled, at {LONG} turns", rows)
    draw(outcomes, folder / "scaling-inter.png")
    page = _PAGE.format(
        table=markdown(rows),
        command=command,
        levels=", ".join(f"`{level}`" for level in LEVELS),
        seeds=len(longest.seeds),
        tasks=longest.after.shape[1],
        samples=SAMPLES,
        steps=f"{ENV_STEPS:,}",
        episodes=BASE.warm_start.episodes,
        kl=BASE.algorithm.kl.weight,
        noise=f"{BASE.warm_start.noise:.0%}",
        stages="\n".join(f"- {found.method}: {_stages(found)}" for found in outcomes[2:]),
        failed=sum(found.failed for found in outcomes),
    )
    write_report(folder, "scaling-inter", page, [_record(found) for found in outcomes])


def _row(found: Outcome, longest: Outcome) -> dict[str, str]:
    difference = "–" if found is longest else difference_text(longest.after.mean(1), found.after.mean(1))
    return {
        "horizon": found.method,
        "warm start": f"{found.before.mean():.3f}",
        "at the end": interval_text(found.after),
        "each seed": seeds_text(found.after),
        f"difference to {longest.method}": difference,
        "turns": f"{found.turns:.1f}",
        "updates": f"{found.updates:.0f}",
    }


def _stages(found: Outcome) -> str:
    """Return the environment steps at which the stages began, for each seed."""
    by_seed: list[str] = []
    for lines in found.lines:
        ends = [0, *(line["env_steps"] for line in lines)]
        begun = {line["horizon"]: ends[i] for i, line in reversed(list(enumerate(lines)))}
        by_seed.append(", ".join(f"{turns} turns from {begun[turns]:,}" for turns in sorted(begun)))
    return " / ".join(by_seed)


def _record(found: Outcome) -> dict[str, Any]:
    return {
        "method": found.method,
        "seeds": found.seeds,
        "before": found.before.mean(1).tolist(),
        "after": found.after.mean(1).tolist(),
        "after_all": interval_record(found.after),
        "turns": found.turns,
        "updates": found.updates,
        "failed": found.failed,
        "curves": [{"env_steps": x.tolist(), "success": y.mean(1).tolist()} for x, y in found.curves],
        "horizons": [[(line["env_steps"], line["horizon"]) for line in lines] for lines in found.lines],
    }


def draw(outcomes: Sequence[Outcome], file: Path) -> None:
    """Draw held-out success over environment steps with intervals; below, the horizon of each seed."""
    with picture(file, 2, 1, sharex=True, figsize=(8, 6), gridspec_kw={"height_ratios": [4, 1]}) as (above, below):
        for n, found in enumerate(outcomes):
            x = np.linspace(0, min(steps[-1] for steps, _ in found.curves), 40)
            success_STX = np.array([_interpolate(x, steps, success) for steps, success in found.curves])
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


def _interpolate(x: Values, steps: Values, success_XT: Values) -> Values:
    """Return each task's success between evaluations, tasks x grid."""
    return np.array([np.interp(x, steps, of_task) for of_task in success_XT.T])


_PAGE = """# ScalingInter-RL against fixed horizons

```sh
{command}
```

A model of 0.33M parameters from scratch imitates {episodes} episodes of an expert with {noise} random actions on
BabyAI's {levels}, which take the expert 5 to 10 turns. From this warm start, one per seed and the same for all, GRPO
trains with 64 episodes per update until {steps} turns have been played in training. Only the horizon differs. The final
evaluation is the same for all: {tasks} held-out tasks, {samples} sampled episodes of each, at most 20 turns.

{table}

Means over {seeds} seeds with 95% intervals by a bootstrap over seeds and, within each, tasks, which are too narrow for
so few seeds. Differences are paired by seed, with 95% t-intervals over seeds. Failed episodes: {failed}.

What this study can't tell: differences smaller than these t-intervals, and whether a growing horizon prevents
collapse. None is expected here: the KL weight is {kl:g} (1e-3 in the paper), each batch is used once, and the paper's
runs collapse after more updates than these have. Equal environment steps with the same number of episodes per update
also give short horizons more updates, so the horizon isn't all that differs.

![Held-out success over environment steps](scaling-inter.png)

Lines are means over seeds of the evaluations during training (48 tasks, one sampled episode each), with 95% intervals
of the same kind. Below is the horizon of each seed.

Environment steps at which the stages began, seed by seed:

{stages}

AdaptiveHorizon ends a stage by those evaluations, which play dev tasks; no method uses test tasks before the end.
"""


def main() -> None:
    """Finish all runs, or report them."""
    run_or_report(__doc__, runs_of, report)


if __name__ == "__main__":
    main()
