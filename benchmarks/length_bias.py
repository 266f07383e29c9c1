"""Measure the length bias of GRPO's token mean and of settings that remove it, over environments, KL weights and seeds.

    uv run python benchmarks/length_bias.py --processes 2 --seeds 0 1 2 3 4 5 6 7
    uv run python benchmarks/length_bias.py --report docs/results --seeds 0 1 2 3 4 5 6 7

With a token mean and a group baseline, the loss-weighted sum of advantages is negative wherever failed episodes have
more completion tokens than successful ones. Each setting that removes the bias is compared with the plain token mean:
same warm start, same tasks, same number of updates, paired by seed. The first command finishes all runs, environment by
environment and seed by seed, and adds a record of each to docs/results/length-bias.json, so it can be interrupted at
any time and resumed on another machine without the run folders. The second writes a page from the records.

Seeds 0 and 1 were for exploration: in `long`, batch normalisation had more success than the token mean in all six
pairs (+0.10 on average). Seeds 2 to 7 test this one hypothesis, with success averaged over the KL weights, so that each
seed counts once; these runs come first. It was written down before any of their pairs was complete, and the number of
seeds once seed 2 was. Until all six are complete, the page has an estimate, and no test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from agentgym_envs import read_episodes
from agentgym_eval.metrics.comparison import Difference, holm
from agentgym_eval.metrics.seeds import over_seeds
from agentgym_trainer.algorithms import GRPO, KL, Aggregation, Algorithm, GroupRelative
from agentgym_trainer.config import Evaluation, Generation, Optimizer, RLConfig, WarmStart, WorldConfig
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.run.folder import RunFolder
from harness import markdown, show, study_arguments, study_records, write_json, write_report
from outcomes import commits, success_by_task
from training_runs import PLAYED, Run, latest_checkpoint, miniature, quickstart, run_all

SAMPLES, TASKS = 4, 96
KLS = (0.0, 1e-3, 0.05)
SEEDS = range(8)

_QUICKSTART = replace(quickstart(), evaluation=Evaluation(tasks=1, test=False, samples=1, ks=(1,)))
WORLDS: dict[str, RLConfig] = {
    # The recipe, with its horizon of 4, 8 and 12 turns.
    "quickstart": _QUICKSTART,
    # Tasks that take the expert 5 to 10 turns, at a horizon of 20.
    "long": replace(
        _QUICKSTART,
        world=WorldConfig(
            "agentgym/BabyAI-v0",
            ("levels=('UnlockLocal', 'OpenRedBlueDoors', 'UnlockPickup')", "available_actions_in_text=False"),
            agent="bare",
            instructions=False,
        ),
        scratch=replace(_QUICKSTART.scratch, context=2048),
        generation=Generation(max_tokens=16, max_context=2048),
        warm_start=WarmStart(episodes=900, noise=0.4, imitate_noise=True, epochs=2, batch=16, lr=5e-3),
        horizon=FixedHorizon(20),
        tasks_per_step=8,
        steps=60,
    ),
    # Goals of one recipe, without distractors.
    "textcraft": replace(
        _QUICKSTART,
        world=WorldConfig("agentgym/TextCraft-v0", ("depth=(1, 1)", "distractors=0"), agent="bare", instructions=False),
        scratch=replace(_QUICKSTART.scratch, vocab=800, merges="words", hidden=128),
        generation=Generation(max_tokens=48, max_context=1024),
        warm_start=WarmStart(episodes=4000, noise=0.3, imitate_noise=True, epochs=1, batch=8, lr=3e-3),
        optimizer=Optimizer(lr=3e-4, micro_tokens=4096),
        horizon=FixedHorizon(12),
        tasks_per_step=8,
        steps=60,
    ),
}
PLAIN, WHITENED = "token mean", "batch normalisation"
ARMS: dict[str, Algorithm] = {
    PLAIN: GRPO,
    "sequence mean": replace(GRPO, aggregation=Aggregation(kind="sequence")),
    "length-weighted baseline": replace(GRPO, advantages=GroupRelative(baseline="length")),
    WHITENED: replace(GRPO, advantages=GroupRelative(whiten=True)),
}
CONFIRMED, CONFIRMING = "long", range(2, 8)
"""The environment in which further seeds compare `WHITENED` with `PLAIN`, and these seeds."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the study."""

    world: str
    kl: float
    arm: str
    run: Run


def cells_of(out: Path, seeds: Sequence[int], *, quick: bool, worlds: Sequence[str] = tuple(WORLDS)) -> list[Cell]:
    """Return all runs, seed by seed, so that the finished ones are balanced."""
    found = list[Cell]()
    for seed, world, kl, (arm, algorithm) in product(seeds, worlds, KLS, ARMS.items()):
        base = miniature(WORLDS[world]) if quick else WORLDS[world]
        penalty = KL("loss", "k3", kl) if kl else KL()
        config = replace(base, seed=seed, algorithm=replace(algorithm, kl=penalty))
        path = out / world / f"seed-{seed}" / f"{arm.replace(' ', '-')}-kl-{kl:g}"
        budget, tasks = (2, 6) if quick else (base.steps, TASKS)
        name = f"{world}, KL {kl:g}, {arm}"
        run = Run(name, seed, config, budget, path, SAMPLES, tasks, "updates", split="dev")
        found.append(Cell(world, kl, arm, run))
    return found


# Outcomes.


def likelihood(start: Path, model: Path, temperature: float) -> float:
    """Return a model's mean log-probability, in nats per episode, of the warm start's successful episodes, or NaN."""
    import torch
    from accelerate import Accelerator
    from agentgym_trainer.learner.learner import Learner
    from agentgym_trainer.models.load import load_model
    from agentgym_trainer.models.policy import PolicyModel
    from agentgym_trainer.tokens.batch import make_batch
    from agentgym_trainer.tokens.encode import encode
    from agentgym_trainer.tokens.trajectory import trajectory

    policy, chat = load_model(str(model), dtype=torch.float32, device=torch.device("cpu"))
    successful = [episode for episode in read_episodes(start / PLAYED) if episode.success]
    if not successful:
        return float("nan")
    batch = make_batch([trajectory(encode(chat, episode)) for episode in successful])
    learner = Learner(PolicyModel(policy, temperature=temperature), Accelerator(cpu=True), Optimizer())
    return learner.logprobs(batch).sum().item() / len(successful)


def record_of(cell: Cell, starts: Path) -> dict[str, Any]:
    """Return the record of a finished run."""
    folder, start = RunFolder(cell.run.path), starts / cell.world / f"seed-{cell.run.seed}"
    lines = list(folder.read_metrics())
    model, temperature = latest_checkpoint(cell.run.path), cell.run.config.generation.temperature
    assert model is not None
    return {
        "world": cell.world,
        "kl": cell.kl,
        "arm": cell.arm,
        "seed": cell.run.seed,
        "before": float(np.mean(success_by_task(list(read_episodes(start / PLAYED))))),
        "success": float(np.mean(success_by_task(list(read_episodes(cell.run.path / PLAYED))))),
        "entropy": _mean(lines[-len(lines) // 5 :], "entropy"),
        "advantage": _mean(lines, "advantage/mean_token"),
        "logprob": likelihood(start, model, temperature),
        "logprob_before": likelihood(start, RunFolder(start).start, temperature),
        "updates": len(lines),
        "commit": commits([cell.run.path]),
    }


def _mean(lines: Sequence[dict[str, Any]], name: str) -> float:
    """Return the mean of a metric over the updates that have it, or NaN: without a trainable group there is none."""
    values = [line[name] for line in lines if line.get(name) is not None]
    return float(np.mean(values)) if values else float("nan")


def paired(records: Sequence[dict[str, Any]], world: str, kl: float, arm: str, name: str) -> Difference | None:
    """Compare a value with that of the plain token mean, over the seeds that have both; None without any."""

    def by_seed(of: str) -> dict[int, float]:
        return {r["seed"]: r[name] for r in records if (r["world"], r["kl"], r["arm"]) == (world, kl, of)}

    ours, plain = by_seed(arm), by_seed(PLAIN)
    both = sorted(ours.keys() & plain.keys())
    return over_seeds([plain[seed] for seed in both], [ours[seed] for seed in both]) if both else None


def averaged(
    records: Sequence[dict[str, Any]], world: str, arm: str, name: str = "success", seeds: Sequence[int] = SEEDS
) -> tuple[int, Difference | None]:
    """Compare a value of an arm with that of `PLAIN`, averaged over the KL weights, over those of the seeds that have
    all of these runs. Returns their number, and None without any.
    """
    runs = {(r["seed"], r["arm"], r["kl"]): r[name] for r in records if r["world"] == world}
    complete = [seed for seed in seeds if all((seed, each, kl) in runs for each in (PLAIN, arm) for kl in KLS)]
    plain, ours = ([fmean(runs[seed, each, kl] for kl in KLS) for seed in complete] for each in (PLAIN, arm))
    return len(complete), over_seeds(plain, ours) if complete else None


def confirmed(records: Sequence[dict[str, Any]], name: str = "success") -> tuple[int, Difference | None]:
    """Compare `WHITENED` with `PLAIN` in `CONFIRMED` over those of the seeds `CONFIRMING` that are complete."""
    return averaged(records, CONFIRMED, WHITENED, name, CONFIRMING)


# The page.


def report(records: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write the page."""
    keys = list(product(WORLDS, KLS, ARMS))
    compared = {key: paired(records, *key, "success") for key in keys if key[2] != PLAIN}
    adjusted = holm({str(key): found.p for key, found in compared.items() if found and not np.isnan(found.p)})
    rows = list[dict[str, str]]()
    for key in keys:
        if own := [r for r in records if (r["world"], r["kl"], r["arm"]) == key]:
            rows.append(_row(own, records, adjusted.get(str(key))))
    show("Success on dev tasks, sampled", rows)
    seeds = {world: len({r["seed"] for r in records if r["world"] == world}) for world in WORLDS}
    page = _PAGE.format(
        table=markdown(rows),
        confirmed=_confirmation(records),
        averages=_averages(records),
        entropy=_difference(confirmed(records, "entropy")[1], ".2f"),
        all_seeds=" ".join(map(str, sorted({r["seed"] for r in records}))),
        commits=", ".join(sorted({r["commit"] for r in records})),
        updates=", ".join(f"{config.steps} in {world}" for world, config in WORLDS.items()),
        tasks=TASKS,
        samples=SAMPLES,
        seeds=", ".join(f"{count} in {world}" for world, count in seeds.items()),
        done=len(records),
        starts=_starts(records),
        planned=len(keys) * len(SEEDS),
    )
    write_report(folder, "length-bias", page)


def _confirmation(records: Sequence[dict[str, Any]]) -> str:
    seeds, found = confirmed(records)
    if found is None:
        return "None of them is complete yet."
    at = found.difference
    reached = (
        f"Batch normalisation reached {found.second:.3f}, and the token mean {found.first:.3f}: {at.mean:+.3f} over "
        f"{seeds} of {len(CONFIRMING)} seeds"
    )
    if seeds < len(CONFIRMING):
        return f"{reached}. The test waits for the others."
    return f"{reached} (95% t-interval {at.low:+.3f} to {at.high:+.3f}, p {found.p:.3f})."


def _starts(records: Sequence[dict[str, Any]]) -> str:
    """Return which seeds trained their warm start again in a later session, with another success before RL."""
    before = dict[tuple[str, int], set[float]]()
    for r in records:
        before.setdefault((r["world"], r["seed"]), set()).add(r["before"])
    again = {key: max(found) - min(found) for key, found in before.items() if len(found) > 1}
    if not again:
        return ""
    seeds = ", ".join(f"{world} {seed}" for world, seed in sorted(again))
    return (
        f" Some warm starts were trained again when the study was resumed without its run folders (seeds {seeds}): "
        f"their success before RL differs by at most {max(again.values()):.3f} from the first."
    )


def _averages(records: Sequence[dict[str, Any]]) -> str:
    """Return a table of each setting's difference to the token mean, averaged over the KL weights."""
    rows = list[dict[str, str]]()
    for world in WORLDS:
        by_arm = {arm: averaged(records, world, arm) for arm in ARMS if arm != PLAIN}
        if any(count for count, _ in by_arm.values()):
            differences = {arm: _difference(found) for arm, (_, found) in by_arm.items()}
            rows.append({"environment": world, "seeds": _range([n for n, _ in by_arm.values()])} | differences)
    return markdown(rows)


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def _row(own: Sequence[dict[str, Any]], records: Sequence[dict[str, Any]], p: float | None) -> dict[str, str]:
    key = own[0]["world"], own[0]["kl"], own[0]["arm"]

    def mean(name: str) -> float:
        return float(np.mean([r[name] for r in own]))

    def difference(name: str, form: str) -> str:
        if key[2] == PLAIN:
            return "–"
        return _difference(paired(records, *key, name), form)

    return {
        "environment": key[0],
        "KL": f"{key[1]:g}",
        "setting": key[2],
        "seeds": str(len(own)),
        "before": f"{mean('before'):.3f}",
        "after": f"{mean('success'):.3f}",
        "difference to token mean": difference("success", ".3f"),
        "p (Holm)": "–" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}",
        "mean advantage per token": f"{mean('advantage'):+.3f}",
        "entropy, last fifth": f"{mean('entropy'):.2f}",
        "log-probability of successes": f"{mean('logprob_before'):.1f} → {mean('logprob'):.1f}",
        "difference to token mean, nats": difference("logprob", ".1f"),
    }


def _difference(found: Difference | None, form: str = ".3f") -> str:
    if found is None:
        return "–"
    at = found.difference
    ends = "" if np.isnan(at.low) else f" ({at.low:+{form}} to {at.high:+{form}})"
    return f"{at.mean:+{form}}{ends}"


_PAGE = """# The length bias of GRPO's token mean

```sh
uv run python benchmarks/length_bias.py --seeds {all_seeds}
```

With a token mean and a group baseline, every completion token of an episode has the episode's advantage. Failed
episodes have more tokens, so the loss-weighted sum of advantages is negative: an update lowers the probability of the
sampled tokens, on average. Three settings make that sum zero. Everything else is the same: the warm start of each seed
(but see the limits), and the number of updates ({updates}). Seeds: {seeds}, at commits {commits}. Before and after:
{tasks} dev tasks, {samples} sampled episodes of each.

{table}

Differences are paired by seed, with 95% t-intervals over seeds; p-values are adjusted over all comparisons by Holm's
method. Rows of `long` include the exploring seeds 0 and 1. The log-probability is that of the warm start's successful
episodes, in nats per episode.

## Confirmation

After seeds 0 and 1, batch normalisation was ahead of the token mean in all six pairs of `long`. Seeds 2 to 7 test that
hypothesis alone, with success averaged over the KL weights, as the script said before any of their pairs was complete;
their number was fixed once seed 2 was. {confirmed}

That the bias is the cause isn't shown. All three settings remove it, and averaged over the KL weights, they differ from
the token mean by the following (unadjusted, over the seeds with all runs).

{averages}

Batch normalisation also rescales advantages, and in the seeds of the test its entropy differs by {entropy}.
Only sampled success was measured, which a lower entropy may raise.

## What the recipes use

- Episodes of many turns: batch normalisation (`--algorithm.advantages.whiten`). The `smollm2-*` recipes have it.
- Episodes of few turns (`quickstart`): at the recipe's own KL weight, 0.05, batch normalisation is ahead of the token
  mean in seven of eight seeds, by an amount that the adjusted p-value doesn't confirm. When `uv run train` trained
  seeds 0, 1 and 2 once more with each, at commits e8913912 to fa937207, it was ahead in two of three on the 96 test
  tasks: the token mean had 0.958, 0.906 and 0.846, and batch normalisation 0.893, 0.943 and 0.896, a difference of
  -0.065, +0.037 and +0.050. Three pairs are too few to confirm or refute the table. Versions sum in other orders, and
  what rounding changes differs more between two runs of a seed than the differences of the table do. The recipe keeps
  GRPO's own advantages, which the other studies start from. So three pairs on test tasks had a part in keeping this
  default.
- The recipes of AgentGym-RL (`textcraft-grpo` and so on) keep what the paper has, and `grpo` is what is published.

## Limits

{done} of {planned} runs are done. The test compares one setting in one environment with one model from scratch; the
other rows are estimates. TextCraft's model solves few tasks before and after RL, so that its differences are small too.
The three KL weights of a seed share their warm start, which the test takes
into account by counting each seed once.{starts}
"""


def main() -> None:
    """Finish all runs, or report them."""
    settings, _ = study_arguments(__doc__)
    file, records = study_records(settings, "length-bias")
    if settings.report is not None:
        report(records, settings.report)
        return
    known = {(r["world"], r["kl"], r["arm"], r["seed"]) for r in records}
    cells = cells_of(settings.out, settings.seeds, quick=settings.quick)
    missing = [cell for cell in cells if (cell.world, cell.kl, cell.arm, cell.run.seed) not in known]
    starts = settings.out / "starts"
    first = [cell for cell in missing if cell.world == CONFIRMED and cell.arm in (PLAIN, WHITENED)]
    rest = [cell for cell in missing if cell not in first]
    batches = [
        [cell for cell in block if (cell.world, cell.run.seed) == (world, seed)]
        for block in (first, rest)
        for world, seed in product(WORLDS, settings.seeds)
    ]
    for batch in batches:
        for begin in range(0, len(batch), settings.processes):  # so that an interruption loses no finished run
            chunk = batch[begin : begin + settings.processes]
            run_all([cell.run for cell in chunk], starts / chunk[0].world, settings.processes)
            records += [record_of(cell, starts) for cell in chunk]
            write_json(file, records)


if __name__ == "__main__":
    main()
