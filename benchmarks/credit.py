"""Compare the advantages of estimators with the true progress of each turn, in environments whose experts know it.

    uv run python benchmarks/credit.py
    uv run python benchmarks/credit.py --report docs/results

A policy takes the expert's action with some probability and a random available action otherwise. The expert's distance
to the goal before and after a turn says how good the turn was. Each estimator of the package gets the same groups of
episodes, and its advantages are correlated with that. No model is trained, except a linear critic for PPO. The first
command measures and adds each finished cell to the JSON, so it can be interrupted; the second writes the page from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from agentgym_trainer.algorithms import (
    GAE,
    AdvantageEstimator,
    GoalDistance,
    GroupRelative,
    NestedStepGroups,
    StepGroups,
    TokenReturns,
)
from agentgym_trainer.algorithms.types import TokenBatch
from credit_episodes import GROUP, WORLDS, Values, critic_values, play_groups, token_batch
from harness import arguments, markdown, quiet, show, write_json, write_report
from numpy.typing import NDArray

RATES = (0.3, 0.5, 0.7)
RESAMPLES = 200
FILE = Path("docs/results/credit.json")


_PLAIN = GroupRelative(scale="none")
ESTIMATORS: dict[str, AdvantageEstimator] = {
    "GRPO": GroupRelative(),
    "Dr. GRPO": _PLAIN,
    "RLOO": GroupRelative(baseline="leave_one_out", scale="none"),
    "GRPO, length-weighted baseline": GroupRelative(baseline="length"),
    "GRPO, batch normalisation": GroupRelative(whiten=True),
    "GRPO, turn returns": GroupRelative(returns="turn", gamma=0.95),
    "GRPO, turn returns, undiscounted": GroupRelative(returns="turn"),
    "REINFORCE++": TokenReturns(),
    "REINFORCE++ with baseline": TokenReturns(baseline=True),
    "GiGPO, observations": StepGroups(),
    "GiGPO, states": StepGroups(anchor="state"),
    "GiGPO, states, undiscounted": StepGroups(anchor="state", gamma=1.0),
    "GiGPO, steps only, states": replace(StepGroups(anchor="state"), step_weight=1e6),
    "GiGPO, steps only, states, undiscounted": StepGroups(anchor="state", gamma=1.0, step_weight=1e6),
    "HGPO, observations": NestedStepGroups(),
    "HGPO, states": NestedStepGroups(anchor="state"),
    "HGPO, states, undiscounted": NestedStepGroups(anchor="state", gamma=1.0),
    "GraphGPO, observations": GoalDistance(),
    "GraphGPO, states": GoalDistance(anchor="state"),
    "GraphGPO, graph only, states": GoalDistance(anchor="state", step_weight=1e6),
    "PPO, token level": GAE(),
    "PPO, turn level": GAE(level="turn"),
    "PPO, turn level, lambda 0.5": GAE(level="turn", lam=0.5),
    "PPO, turn level, lambda 0": GAE(level="turn", lam=0.0),
}


# Agreement.


def turn_advantages(estimator: AdvantageEstimator, batch: TokenBatch) -> Values:
    """Return an estimator's advantage of each turn, the mean over its completion tokens, in order."""
    estimate_N = estimator.estimate(batch, None, lambda local: local).advantages_N.double()
    turn_N = batch.episode_N * batch.rewards_EK.shape[1] + batch.turn_N
    index_N = turn_N.unique(return_inverse=True)[1]
    sums_X = torch.zeros(int(index_N.max()) + 1, dtype=torch.float64).index_add(0, index_N, estimate_N)
    return (sums_X / index_N.bincount()).numpy()


@dataclass(frozen=True, slots=True)
class Agreement:
    """How an estimator's advantages agree with the true ones over the turns of a condition."""

    pearson: float
    spearman: float
    sign: float
    """Share of turns whose sign agrees, where an advantage of 0 counts half."""


def agreement(estimate_X: Values, true_X: Values) -> Agreement:
    """Compare advantages of the same turns; correlations are 0 if one of them is constant."""
    from scipy.stats import rankdata

    def correlation(a_X: Values, b_X: Values) -> float:
        if np.ptp(a_X) == 0 or np.ptp(b_X) == 0:
            return 0.0
        return float(np.corrcoef(a_X, b_X)[0, 1])

    spearman = correlation(rankdata(estimate_X), rankdata(true_X))
    product_X = np.sign(np.round(estimate_X, 9)) * np.sign(true_X)
    return Agreement(correlation(estimate_X, true_X), spearman, float((1 + product_X).mean() / 2))


def with_intervals(estimate_X: Values, true_X: Values, group_X: NDArray[np.int64]) -> dict[str, list[float]]:
    """Return each measure with its 95% interval, by a bootstrap over groups: turns of a group are compared."""
    rng, members = np.random.default_rng(0), [np.flatnonzero(group_X == group) for group in np.unique(group_X)]
    drawn = list[list[float]]()
    for _ in range(RESAMPLES):
        chosen = np.concatenate([members[i] for i in rng.integers(len(members), size=len(members))])
        found = agreement(estimate_X[chosen], true_X[chosen])
        drawn.append([found.pearson, found.spearman, found.sign])
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    whole = agreement(estimate_X, true_X)
    measures = {"pearson": whole.pearson, "spearman": whole.spearman, "sign": whole.sign}
    return {name: [value, low[i], high[i]] for i, (name, value) in enumerate(measures.items())}


def measure(name: str, rate: float, horizon: int, count: int) -> list[dict[str, Any]]:
    """Measure all estimators in one condition."""
    world = WORLDS[name]
    groups, success = play_groups(world, rate, horizon, count, seed=0)
    practice, _ = play_groups(world, rate, horizon, count, seed=1, measured=False)
    values_N = torch.tensor(critic_values(groups, practice, horizon), dtype=torch.float32)
    batch = token_batch(groups).with_logprobs(values_N=values_N)
    turns = [(g, turn) for g, group in enumerate(groups) for episode in group for turn in episode]
    progress = [None if t.before is None or t.after is None else t.before - t.after for _, t in turns]
    known = np.array([each is not None for each in progress])
    decrease_X = np.array([each for each in progress if each is not None], dtype=np.float64)
    group_X = np.array([g for g, _ in turns])[known]
    shared = {
        "world": name,
        "rate": rate,
        "horizon": horizon,
        "groups": count,
        "success": success,
        "turns": len(turns),
        "compared": int(known.sum()),
        "decrease": float(decrease_X.mean()),
    }
    return [
        shared
        | {"estimator": label}
        | with_intervals(turn_advantages(estimator, batch)[known], decrease_X - decrease_X.mean(), group_X)
        for label, estimator in ESTIMATORS.items()
    ]


# The page.


def report(records: Sequence[dict[str, Any]], folder: Path, command: str) -> None:
    """Write the page."""
    tables: list[str] = []
    for world, horizon in dict.fromkeys((r["world"], r["horizon"]) for r in records):
        own = [r for r in records if (r["world"], r["horizon"]) == (world, horizon)]
        cells = list(dict.fromkeys((r["rate"], r["success"]) for r in own))
        rows = [
            {"estimator": label}
            | {
                f"{rate:.0%} expert, success {success:.2f}": _cell(r)
                for rate, success in cells
                for r in own
                if (r["estimator"], r["rate"]) == (label, rate)
            }
            for label in dict.fromkeys(r["estimator"] for r in own)
        ]
        show(f"{world}, {horizon} turns", rows)
        tables.append(f"### {world}, at most {horizon} turns\n\n{markdown(rows)}")
    labels = dict.fromkeys(r["estimator"] for r in records)
    means = {label: np.mean([r["pearson"][0] for r in records if r["estimator"] == label]) for label in labels}
    summary = [
        {"estimator": label, "mean correlation": f"{means[label]:.2f}"}
        for label in sorted(means, key=lambda k: -means[k])
    ]
    compared = sum({(r["world"], r["rate"], r["horizon"]): r["compared"] for r in records}.values())
    played = sum({(r["world"], r["rate"], r["horizon"]): r["turns"] for r in records}.values())
    page = _PAGE.format(
        command=command,
        summary=markdown(summary),
        tables="\n\n".join(tables),
        group=GROUP,
        groups=", ".join(f"{count} in {world}" for world, count in {r["world"]: r["groups"] for r in records}.items()),
        compared=f"{compared:,}",
        played=f"{played:,}",
    )
    write_report(folder, "credit", page)


def _cell(record: Mapping[str, Any]) -> str:
    value, low, high = record["pearson"]
    return f"{value:.2f} ({low:.2f} to {high:.2f}); {record['spearman'][0]:.2f}; {record['sign'][0]:.0%}"


_PAGE = """# Which estimators credit the right turns

```sh
{command}
```

An advantage estimator says which turns to make more likely. In TextCraft and BabyAI the experts know how good a turn
was, so the two can be compared without training anything.

**True advantage.** The expert's distance to the goal before a turn minus the distance after it, minus the mean of that
over the turns of the table's cell. In TextCraft the distance is the number of commands in the planner's plan from the
current inventory, in BabyAI the number of turns that the expert takes from the current state. With a reward of -1 per
turn, the value of a state under the expert is minus its distance, so the decrease is the turn's advantage under the
expert plus 1: the progress under a prover of process advantage verifiers
([2410.08146](https://arxiv.org/abs/2410.08146)), and the reward of potential-based shaping (Ng et al. 1999). It is not
Q - V of the policy that played, which the estimators estimate: an action that leads away from the goal counts as bad
even if the policy has turns enough to make up for it.

**Policy.** With the given probability the expert's action, otherwise a random available one. Groups of {group} episodes
of a task, {groups} per cell. The reward is 1 at the goal. Each word of an action is a completion token; a turn's
advantage is the mean over its tokens. PPO's critic is a ridge regression on hashed words, fitted to other episodes of
the same policy: it reads the first and the last observation, the turn, and which actions were taken, and at token level
the words of the action so far. A model's critic reads more.

Each cell: Pearson's correlation of estimated and true advantage with its 95% interval by a bootstrap over groups;
Spearman's; the share of turns with the same sign, where an advantage of 0 counts half. Good turns are the majority at
high rates, so an estimator that is positive nearly everywhere can agree in sign without knowing anything: compare the
correlations. {compared} of {played} turns are compared: the distance after the last turn of a failed episode isn't
measured.

"Turn returns", GiGPO and HGPO discount by 0.95 from turn to turn, as GiGPO's paper does, except in the rows that say
"undiscounted"; the others don't, but distances tell GraphGPO's turns apart. Where all episodes of a group succeed, no
undiscounted return does.

## Summary

The mean of Pearson's correlations over all conditions. GraphGPO estimates from the group's transitions what this page
compares with, the distance to the goal; a benchmark of another quantity might rank it lower.

{summary}

Undiscounted, GiGPO, HGPO and turn returns agree no better than GRPO: in these means, the discount is what they add.

## Conditions

{tables}

## What this doesn't show

Whether agreement predicts how fast a policy learns is [another page](credit-learning.md); in
[the runs of ten of the twelve presets](algorithms.md), KL penalty, clipping and learning rate differ as well. The
policies here are mixtures with the expert, not language models: their mistakes are random and independent of each
other.
"""


def main() -> None:
    """Measure, or write the page."""
    parser = arguments(__doc__, "quick", "report", "out", out=FILE)
    settings = parser.parse_args()
    if settings.report is not None:
        if not FILE.exists():
            raise SystemExit(f"{FILE} doesn't exist; run the script without --report first.")
        report(json.loads(FILE.read_text(encoding="utf-8")), settings.report, "uv run python benchmarks/credit.py")
        return
    quiet()
    known: list[dict[str, Any]] = json.loads(settings.out.read_text(encoding="utf-8")) if settings.out.exists() else []
    done = {(r["world"], r["rate"], r["horizon"]) for r in known}
    cells = [(name, rate, horizon) for name, world in WORLDS.items() for rate in RATES for horizon in world.horizons]
    if settings.quick:
        cells, known, done = [cells[0], cells[-1]], [], set[Any]()
    for name, rate, horizon in (cell for cell in cells if cell not in done):
        known += measure(name, rate, horizon, 2 if settings.quick else WORLDS[name].groups)
        print(f"{name}, {rate:.0%} expert, {horizon} turns: success {known[-1]['success']:.2f}", flush=True)
        if not settings.quick:
            write_json(settings.out, sorted(known, key=lambda r: cells.index((r["world"], r["rate"], r["horizon"]))))


if __name__ == "__main__":
    main()
