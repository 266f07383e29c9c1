"""Compare what a warm start learns in the turns in which a noisy expert acts at random.

    uv run python benchmarks/expert_labels.py
    uv run python benchmarks/expert_labels.py --report docs/results

The random actions are context, or imitated, or replaced in the loss by what the expert itself would have done. Every
run imitates the same episodes of an expert with a new model, and plays training and dev tasks. The first command adds a
record of each run to docs/results/expert-labels.json as soon as it ends, and can be interrupted and repeated. The
second writes a page from the records.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from agentgym_envs import read_episodes
from agentgym_eval.metrics.comparison import holm
from agentgym_eval.metrics.seeds import over_seeds
from agentgym_trainer.config import RLConfig, WarmStart
from harness import markdown, show, study_arguments, study_records, write_json, write_report
from length_bias import WORLDS
from outcomes import commits, difference_text, seeds_text, success_by_task
from training_runs import PLAYED, Run, make_start, miniature, play_held_out, quickstart

SAMPLES, TASKS = 4, 96
CONTEXT, LABELS = "context", "labeled"
ARMS: dict[str, dict[str, Any]] = {
    CONTEXT: {},
    "imitated": {"imitate_noise": True},
    LABELS: {"imitate_labels": True},
}
ENVIRONMENTS: dict[str, RLConfig] = {
    "BabyAI": replace(quickstart(), warm_start=WarmStart(episodes=1000, noise=0.3, epochs=2, batch=16, lr=5e-3)),
    "TextCraft": replace(
        WORLDS["textcraft"], warm_start=WarmStart(episodes=4000, noise=0.3, rename=0.9, epochs=2, batch=8, lr=3e-3)
    ),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the study."""

    environment: str
    arm: str
    seed: int
    path: Path
    quick: bool

    @property
    def run(self) -> Run:
        """The run on dev tasks."""
        config = miniature(ENVIRONMENTS[self.environment]) if self.quick else ENVIRONMENTS[self.environment]
        warm = replace(config.warm_start, **ARMS[self.arm])
        tasks = 6 if self.quick else TASKS
        config = replace(config, seed=self.seed, warm_start=warm)
        return Run(self.arm, self.seed, config, 1, self.path, SAMPLES, tasks, "updates", split="dev")


def finish(cell: Cell) -> dict[str, Any]:
    """Train and play, and return the record."""
    run = cell.run
    began = time.monotonic()
    model = make_start(run, cell.path)
    seconds = time.monotonic() - began
    trained = cell.path / "train.jsonl"
    play_held_out(model, replace(run, split="train"), trained)
    return {
        "environment": cell.environment,
        "arm": cell.arm,
        "seed": cell.seed,
        "dev": _success(cell.path / PLAYED),
        "train": _success(trained),
        "seconds": round(seconds),
        "commit": commits([cell.path]),
    }


def _success(file: Path) -> float:
    return fmean(success_by_task(list(read_episodes(file))))


def report(records: Sequence[dict[str, Any]], folder: Path, command: str) -> None:
    """Write the page."""
    success = {
        key: {r["seed"]: r for r in records if (r["environment"], r["arm"]) == key}
        for key in product(ENVIRONMENTS, ARMS)
    }
    pairs = {
        (name, arm): _paired(success[name, CONTEXT], success[name, arm])
        for name, arm in product(ENVIRONMENTS, ARMS)
        if arm != CONTEXT
    }
    adjusted = holm({f"{name}/{arm}": over_seeds(*pair).p for (name, arm), pair in pairs.items()})
    rows = [
        {
            "environment": name,
            "random actions": arm,
            "training tasks": f"{np.mean([r['train'] for r in found.values()]):.3f}",
            "dev tasks": f"{np.mean([r['dev'] for r in found.values()]):.3f}",
            "each seed": seeds_text(np.array([[r["dev"]] for _, r in sorted(found.items())])),
            "minus context, dev tasks": "–" if arm == CONTEXT else difference_text(*pairs[name, arm]),
            "p": "–" if arm == CONTEXT else f"{adjusted[f'{name}/{arm}']:.3f}",
            "seconds": f"{np.mean([r['seconds'] for r in found.values()]):.0f}",
        }
        for (name, arm), found in success.items()
    ]
    show("Success after the warm start, sampled", rows)
    page = _PAGE.format(
        command=command,
        table=markdown(rows),
        seeds=len({r["seed"] for r in records}),
        tasks=TASKS,
        samples=SAMPLES,
        commits=", ".join(sorted({r["commit"] for r in records})),
        verdict=_verdict(pairs, adjusted),
    )
    write_report(folder, "expert-labels", page)


def _verdict(pairs: dict[tuple[str, str], tuple[list[float], list[float]]], adjusted: dict[str, float]) -> str:
    found = [f"{arm} in {name}" for name, arm in pairs if adjusted[f"{name}/{arm}"] < 0.05]
    above = [
        f"{arm}, {name}: {sum(b > a for a, b in zip(*pair, strict=True))} of {len(pair[0])}"
        for (name, arm), pair in pairs.items()
    ]
    detected = f"A difference is detected for: {'; '.join(found)}." if found else "No difference is detected."
    return f"{detected} Seeds in which an arm is above context:\n{'; '.join(above)}."


def _paired(plain: dict[int, Any], other: dict[int, Any]) -> tuple[list[float], list[float]]:
    both = sorted(plain.keys() & other.keys())
    return [plain[seed]["dev"] for seed in both], [other[seed]["dev"] for seed in both]


_PAGE = """# Labels for the random actions of a noisy expert

```sh
{command}
```

A noisy expert acts at random in 30% of its turns, which leads it to states that it wouldn't reach itself. A warm start
can take these actions as context only (the default), imitate them (`--warm-start.imitate-noise`), or train on what the
expert itself would have done in their place (`--warm-start.imitate-labels`), which gives a label in every state and
imitates nothing random. Each label costs a context of its own, which packs share with the episode's.

Small models from scratch imitate the same episodes with the same number of optimizer steps and an equal learning rate:
in BabyAI 1,000 episodes of the quickstart's levels, in TextCraft 4,000 of goals that take one recipe, nine of ten with
renamed items, each twice. Up to {tasks} training and {tasks} dev tasks (TextCraft has 15 of one recipe), {samples}
sampled episodes of each.

{table}

Means over {seeds} seeds; differences are paired by seed, with 95% t-intervals over seeds, and p is adjusted by Holm's
method for the comparisons of this table. {verdict}

Seconds are those of the warm start and the episodes on dev tasks, on one thread of a shared machine. At commit
{commits}.
"""


def main() -> None:
    """Finish all runs, or report them."""
    settings, command = study_arguments(__doc__)
    file, records = study_records(settings, "expert-labels")
    if settings.report is not None:
        report(records, settings.report, command)
        return
    known = {(r["environment"], r["arm"], r["seed"]) for r in records}
    for seed, environment, arm in product(settings.seeds, ENVIRONMENTS, ARMS):
        if (environment, arm, seed) not in known:
            path = settings.out / environment.lower() / f"seed-{seed}" / str(list(ARMS).index(arm))
            records.append(finish(Cell(environment, arm, seed, path, settings.quick)))
            print(json.dumps(records[-1]), flush=True)
            write_json(file, records)


if __name__ == "__main__":
    main()
