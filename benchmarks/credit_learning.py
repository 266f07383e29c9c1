"""Ask whether estimators that credit the right turns learn faster, in the corridor of the study of horizons.

    uv run python benchmarks/credit_learning.py --processes 2 --seeds 1 2 3 4 5 6
    uv run python benchmarks/credit_learning.py --report docs/results --seeds 1 2 3 4 5 6

Agreement is measured as in `credit.py`, on episodes of the model that all runs of a seed begin with. From this model,
each estimator trains with the same settings: no KL penalty, one learning rate, one horizon, and as many turns played
per update. The hypothesis, written down before the first run: over estimators, agreement and speed of learning
correlate. Its test is a t-test over seeds of Spearman's correlation; speed is the mean success over the evaluations on
dev tasks. Added after three seeds, without a hypothesis: agreement on the groups that training keeps, and a permutation
test over estimators. The first command finishes all runs, and adds the records of each finished seed to
docs/results/credit-learning.json; the second writes a page from them.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_envs import Episode, read_episodes
from agentgym_eval.metrics.seeds import over_seeds
from agentgym_trainer.algorithms import GRPO, KL
from agentgym_trainer.run.folder import RunFolder
from credit import ESTIMATORS, Agreement, agreement, turn_advantages
from credit_episodes import GROUP, Group, PlayedTurn, Values, token_batch
from harness import markdown, run_parallel, show, study_arguments, study_records, write_json, write_report
from horizon.design import CORRIDOR, SAMPLES, UPDATES
from horizon.run import QUICK
from outcomes import commits, difference_text, picture, success_by_task
from training_runs import PLAYED, Run, finish_run, make_start, play_held_out

ARMS = (
    "GRPO",
    "RLOO",
    "REINFORCE++",
    "GRPO, turn returns",
    "GiGPO, observations",
    "GiGPO, states",
    "GiGPO, steps only, states",
    "HGPO, observations",
    "GraphGPO, observations",
    "GraphGPO, graph only, states",
)
"""Estimators of `credit.py` that need no critic, and differ in more than the scale."""
LR = 2.5e-4
"""The learning rate that pilot runs of the study of horizons chose for GRPO at this horizon."""
GROUPS = "groups.jsonl"
MEASURED = 96
"""Number of dev tasks on which agreement is measured, with a group of episodes for each."""
PERMUTATIONS = 9_999
FALLEN = "GraphGPO, observations"
"""The estimator whose success falls in training."""


def runs_of(out: Path, seed: int, *, quick: bool) -> list[Run]:
    """Return a run for each estimator."""
    base = replace(CORRIDOR, seed=seed, optimizer=replace(CORRIDOR.optimizer, lr=LR))
    updates = UPDATES
    if quick:
        base, updates = replace(QUICK["corridor"], seed=seed), 2
    return [
        Run(
            arm,
            seed,
            replace(base, algorithm=replace(GRPO, advantages=ESTIMATORS[arm], kl=KL())),
            updates,
            out / f"seed-{seed}" / arm.replace(",", "").replace(" ", "-"),
            SAMPLES,
            base.evaluation.test_tasks,
            "updates",
        )
        for arm in ARMS
    ]


def warm_started(run: Run, path: Path, tasks: int) -> str:
    """Create the model of a seed, play the test tasks, and play the groups of dev tasks that measure agreement."""
    start = make_start(replace(run, config=replace(run.config, turns_per_step=0)), path)
    play_held_out(start, replace(run, split="dev", tasks=tasks, samples=GROUP), path / GROUPS)
    return f"warm start, seed {run.seed}"


# Agreement.


def turns_of(episode: Episode) -> list[PlayedTurn]:
    """Return the turns with the number of rooms left before and after each; unknown after the last one of a failure."""
    rooms, left = episode.difficulty, list[int]()
    for turn in episode.turns:
        words = turn.observation.split()
        # After an invalid action, the observation names no room: the agent is where it was.
        left.append(rooms - int(words[1]) if words[0] == "room" else left[-1])
    ends = [*left[1:], 0 if episode.success else None]
    return [
        PlayedTurn(turn.observation, turn.state_key, turn.action or "none", turn.reward, before, after)
        for turn, before, after in zip(episode.turns, left, ends, strict=True)
    ]


def agreements(episodes: Sequence[Episode]) -> dict[str, dict[str, float]]:
    """Return each estimator's agreement with the turns' true advantages, over groups of episodes of a task: over all,
    and over those that training keeps, whose share is `kept`.
    """
    groups: dict[str, Group] = {}
    for episode in episodes:
        groups.setdefault(episode.task_id, []).append(turns_of(episode))
    return {arm: _agreement(arm, list(groups.values())) for arm in ARMS}


def _agreement(arm: str, groups: Sequence[Group]) -> dict[str, float]:
    algorithm = replace(GRPO, advantages=ESTIMATORS[arm], kl=KL())
    kept = [group for group in groups if not algorithm.is_flat(token_batch([group]))]
    whole, trained = _compared(arm, groups), _compared(arm, kept)
    measures = {"pearson": whole.pearson, "spearman": whole.spearman, "sign": whole.sign}
    return measures | {"kept": len(kept) / len(groups), "kept_pearson": trained.pearson}


def _compared(arm: str, groups: Sequence[Group]) -> Agreement:
    turns = [turn for group in groups for played in group for turn in played]
    known = np.array([turn.after is not None for turn in turns])
    decrease_X = np.array([t.before - t.after for t in turns if t.before is not None and t.after is not None], float)
    estimate_X = turn_advantages(ESTIMATORS[arm], token_batch(groups))[known]
    return agreement(estimate_X, decrease_X - decrease_X.mean())


# Records.


def records_of(runs: Sequence[Run], start: Path) -> list[dict[str, Any]]:
    """Return the records of a seed's finished runs."""
    agreeing = agreements(list(read_episodes(start / GROUPS)))
    return [
        {
            "estimator": run.method,
            "seed": run.seed,
            **agreeing[run.method],
            "before": float(np.mean(success_by_task(list(read_episodes(start / PLAYED))))),
            "after": float(np.mean(success_by_task(list(read_episodes(run.path / PLAYED))))),
            "curve": {step: _dev_success(run, step) for step in RunFolder(run.path).evaluated_steps("sampled")},
            "commit": commits([run.path]),
        }
        for run in runs
    ]


def _dev_success(run: Run, step: int) -> float:
    return float(np.mean(success_by_task(RunFolder(run.path).read_evaluation(step, "sampled") or [])))


def speed(record: dict[str, Any]) -> float:
    """Return the mean success over the evaluations after the first update."""
    return float(np.mean([success for step, success in record["curve"].items() if int(step) > 0]))


# The page.


def report(records: Sequence[dict[str, Any]], folder: Path, command: str) -> None:
    """Write the page and its figure."""
    seeds = sorted({record["seed"] for record in records})
    own = {arm: sorted((r for r in records if r["estimator"] == arm), key=lambda r: r["seed"]) for arm in ARMS}
    agreeing = {arm: np.array([r["pearson"] for r in found]) for arm, found in own.items()}
    kept = {arm: np.array([r["kept_pearson"] for r in found]) for arm, found in own.items()}
    speeds = {arm: np.array([speed(r) for r in found]) for arm, found in own.items()}
    after = {arm: np.array([r["after"] for r in found]) for arm, found in own.items()}
    shares = {arm: np.array([r["kept"] for r in found]) for arm, found in own.items()}
    most = [arm for arm in ARMS if shares[arm].mean() > 0.5]
    rows = [
        {
            "estimator": arm,
            "agreement": f"{agreeing[arm].mean():.2f}",
            "groups kept": f"{shares[arm].mean():.0%}",
            "agreement in these": f"{kept[arm].mean():.2f}",
            "success on dev tasks, mean over training": f"{speeds[arm].mean():.3f}",
            "minus GRPO": difference_text(speeds["GRPO"].tolist(), speeds[arm].tolist()) if arm != "GRPO" else "–",
            "after, on test tasks": f"{after[arm].mean():.3f}",
            "minus GRPO, after": difference_text(after["GRPO"].tolist(), after[arm].tolist()) if arm != "GRPO" else "–",
        }
        for arm in sorted(ARMS, key=lambda arm: -agreeing[arm].mean())
    ]
    show("Agreement and learning", rows)
    page = _PAGE.format(
        command=command,
        commits=", ".join(sorted({record["commit"] for record in records})),
        before=f"{np.mean([r['before'] for r in records]):.3f}",
        seeds=len(seeds),
        updates=UPDATES,
        measured=MEASURED,
        group=GROUP,
        lr=f"{LR:g}",
        table=markdown(rows),
        speed=_correlation(agreeing, speeds),
        after=_correlation(agreeing, after),
        kept=_correlation(kept, speeds),
        shares=_correlation(shares, speeds),
        most=len(most),
        most_speed=_correlation(agreeing, speeds, most),
        steady=_correlation(agreeing, speeds, [arm for arm in most if arm != FALLEN]),
        permuted=f"{_permuted(agreeing, speeds):.3f}",
        fallen_arm=FALLEN,
        fallen=sum(_has_fallen(record) for record in records if record["estimator"] == FALLEN),
    )
    write_report(folder, "credit-learning", page)
    draw(agreeing, speeds, folder / "credit-learning.png")


def _has_fallen(record: dict[str, Any]) -> bool:
    """Return whether success on dev tasks ended more than 0.1 below its maximum."""
    success = list(record["curve"].values())
    return max(success) - success[-1] > 0.1


def _correlation(agreeing: dict[str, Values], outcome: dict[str, Values], arms: Sequence[str] = ARMS) -> str:
    """Return Spearman's correlation over estimators, seed by seed, with a t-test over seeds."""
    a_ES, o_ES = (np.array([values[arm] for arm in arms]) for values in (agreeing, outcome))
    found = [agreement(a_ES[:, seed], o_ES[:, seed]).spearman for seed in range(a_ES.shape[1])]
    each = ", ".join(f"{value:+.2f}" for value in found)
    test = over_seeds([0.0] * len(found), found)
    at, p = test.difference, "p < 0.001" if test.p < 0.001 else f"p {test.p:.3f}"
    return f"{at.mean:+.2f} (95% t-interval {at.low:+.2f} to {at.high:+.2f}, {p}; by seed: {each})"


def _permuted(agreeing: dict[str, Values], outcome: dict[str, Values]) -> float:
    """Return the p-value, two-sided, of Spearman's correlation of the estimators' means, by permuting estimators."""
    a_E, o_E = (np.array([values[arm].mean() for arm in ARMS]) for values in (agreeing, outcome))
    rng, observed = np.random.default_rng(0), abs(agreement(a_E, o_E).spearman)
    drawn = [abs(agreement(a_E, rng.permutation(o_E)).spearman) for _ in range(PERMUTATIONS)]
    return (1 + sum(value >= observed - 1e-9 for value in drawn)) / (1 + PERMUTATIONS)


def draw(agreeing: dict[str, Values], speeds: dict[str, Values], file: Path) -> None:
    """Draw agreement and speed: a small point for each seed, a large one for an estimator's means."""
    with picture(file, figsize=(9, 4.5)) as axes:
        for arm, marker in zip(ARMS, "osD^v<>phX", strict=True):
            style: Any = {"marker": marker, "linestyle": "", "markersize": 9, "fillstyle": "none", "label": arm}
            (line,) = axes.plot(agreeing[arm].mean(), speeds[arm].mean(), **style)
            axes.plot(agreeing[arm], speeds[arm], ".", color=line.get_color(), alpha=0.5)
        axes.set(xlabel="correlation with the true advantage", ylabel="success on dev tasks, mean over training")
        axes.grid(alpha=0.15)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


_PAGE = """# Do estimators that credit the right turns learn faster?

```sh
{command}
```

[The benchmark of credit](credit.md) says how well the advantages of an estimator agree with the true progress of each
turn. Here estimators train with the same settings but for their discount: in the corridor of the [study of
horizons](horizon.md), from one warm start per seed, with horizon 24, learning rate {lr} and {updates} updates of about
768 turns, without a KL penalty. {seeds} of the six seeds that were planned, at commits {commits}
(a plus: files of results had changed). Success before: {before}.

**Agreement** is Pearson's correlation with the true advantage (the decrease of the number of rooms left, minus its
mean), over the turns of {group} episodes of each of {measured} dev tasks, played by the model that the runs begin with:
a language model's own mistakes, not those of a mixture with the expert.

**The hypothesis**, written down with the script before the first run, is that agreement and speed of learning
correlate over estimators. Speed is success on dev tasks, the mean over all evaluations in training. GiGPO, HGPO and
turn returns discount by 0.95 per turn, as on the page of credit; GRPO, RLOO and REINFORCE++ don't.

{table}

Differences are paired by seed, with 95% t-intervals.

Spearman's correlation of agreement with speed, the registered test: {speed}.

With success after training: {after}.

Not registered: with agreement over the groups that training keeps, Spearman's correlation with speed is {kept}. If the
estimators are permuted, their mean agreement and mean speed correlate as much with p {permuted}.

The registered correlation lies between two clusters, the {most} estimators that keep more than half of the groups and
the others. The share of groups kept alone correlates with speed by {shares}.
Among the {most}, agreement correlates with speed by {most_speed};
without "{fallen_arm}", left out post hoc, by {steady}.

![Agreement and success, by estimator](credit-learning.png)

Large markers are means, dots the seeds.

## What this doesn't show

- The registered test asks whether the ranking of these ten estimators repeats over seeds. It isn't a test over a
  population of estimators: few of them are independent, and a chance correlation of ten arms would repeat, too. The
  permutation test treats them as exchangeable.
- Groups in which an estimator has nothing to tell apart are dropped, as in training with GRPO's settings ("groups
  kept"). Estimators that tell more groups apart also train on more episodes, and this may explain the difference
  between them and GRPO, RLOO and REINFORCE++. (REINFORCE++'s own preset keeps all groups; this is its estimator.)
- A discount alone makes more groups train: in the [study of horizons](horizon.md), GRPO with a discount of 0.95 trains
  5.0 groups per update instead of 1.5, and its success on dev tasks, the mean over training, is 0.648 instead of 0.632
  (+0.005 to +0.026, unadjusted). On the [page of credit](credit.md), turn returns agree by 0.25 with it, by 0.15
  without, and GRPO by 0.16. So what is due to comparing turns can't be told from what is due to the discount.
- The advantages of "steps only" and "graph only" are so large that every gradient is clipped; those of the others
  hardly ever are. The learning rate was chosen for GRPO.
- Speed is a mean over training, so a late collapse counts as slow: "{fallen_arm}" has the second-best
  agreement and the lowest success, which ended more than 0.1 below its maximum in {fallen} of {seeds} seeds. Agreement
  with the initial model's episodes doesn't protect from that.
"""


def main() -> None:
    """Finish all runs, or report them."""
    settings, command = study_arguments(__doc__)
    file, records = study_records(settings, "credit-learning")
    if settings.report is None:
        known = {record["seed"] for record in records}
        for seed in (seed for seed in settings.seeds if seed not in known):
            runs, start = runs_of(settings.out, seed, quick=settings.quick), settings.out / "starts" / f"seed-{seed}"
            run_parallel([partial(warm_started, runs[0], start, 6 if settings.quick else MEASURED)], 1)
            run_parallel([partial(finish_run, run, RunFolder(start).start) for run in runs], settings.processes)
            records += records_of(runs, start)
            write_json(file, records)
            shutil.rmtree(runs[0].path.parent)
    if settings.report is not None or settings.quick:
        report(records, settings.report or settings.out, command)


if __name__ == "__main__":
    main()
