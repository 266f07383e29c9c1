"""SFT, DPO and AgentEvol on TextCraft with models from scratch, over training seeds: success on goals never seen.

    uv run python benchmarks/from_data.py --processes 2 --seeds 0 1 2 3 4
    uv run python benchmarks/from_data.py --report docs/results --seeds 0 1 2 3 4

Each model comes from `uv run train` and plays through `uv run evaluate`, both just as anyone would run them. All
methods of a seed go on with the same model of SFT. AgentEvol has the expert's episodes of 60 training goals, and
explores the others; what the expert's episodes of all training goals would have given stands beside it. The first
command runs what hasn't been run yet (`--quick`: miniatures, which show that it works); the second reads what the seeds
left that have ended, and writes a page and JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from agentgym_eval.metrics.comparison import Difference, holm
from agentgym_eval.metrics.seeds import over_seeds
from agentgym_trainer.config import AgentEvolConfig, DPOConfig
from agentgym_trainer.recipes import RECIPES, tiny
from agentgym_trainer.run.folder import RunFolder
from commands import TOOK, Training, call, train  # the files beside this one
from many_runs import command_line, commits, markdown, show
from rich.console import Console

MANNERS = {"sampled": "--samples 4 --temperature 1", "greedy": "--samples 1 --temperature 0"}
BASE = "SFT"
CLONED = "AgentEvol, iteration 0 (60 goals of the expert)"
_PLAYED = "--data.files RUNS/dpo-textcraft/data.jsonl"
"""What the model of SFT played, which is the same for all that learn from it."""


@dataclass(frozen=True, slots=True)
class Row:
    """A model of the table, of one seed."""

    name: str
    training: Training
    against: str = ""
    """Name of the row that it is compared with."""
    model: str = "model"
    """In the folder of its run."""

    @property
    def path(self) -> Path:
        """Where the model lies."""
        return self.training.path / self.model

    def played(self, manner: str) -> Path:
        """Folder of the evaluation."""
        return self.training.runs / "played" / f"{self.training.path.name}-{self.model.replace('/', '-')}-{manner}"

    def command(self, manner: str) -> str:
        """What lets it play all test tasks of the world that it was trained in."""
        config = RECIPES[self.training.recipe].config
        world = config.world
        options = " ".join(f'"{option}"' for option in world.options)
        return " ".join(
            (
                f"uv run evaluate --env {world.env} --options {options} --policy hf:{self.path} --split test",
                f"--agent {world.agent} {'' if world.instructions else '--no-instructions '}{MANNERS[manner]}",
                f"--horizon {config.horizon.longest} --max-tokens {config.generation.max_tokens}",
                f"--out {self.played(manner)}",
            )
        )

    @property
    def ended(self) -> bool:
        """Whether it has been trained and played."""
        return all((self.played(manner) / "report.json").exists() for manner in MANNERS)


def rows_of(out: Path, seed: int, *, quick: bool) -> list[Row]:
    """The table of a seed, from top to bottom."""
    runs, seeded = out / f"seed-{seed}", f"--seed {seed}"

    def training(recipe: str, name: str = "", flags: str = "") -> Training:
        return Training(recipe, runs, name, f"{seeded} {flags}".strip())

    evol = training("evol-textcraft")
    config = RECIPES[evol.recipe].config
    assert isinstance(config, AgentEvolConfig)
    iterations = tiny(config).iterations if quick else config.iterations
    expert = f"--model RUNS/sft-textcraft/model --data.noise 0 --epochs 1 --optimizer.lr {config.optimizer.lr:g}"
    return [
        Row(BASE, training("sft-textcraft")),
        Row("DPO", training("dpo-textcraft"), BASE),
        Row(
            "DPO, rejected sides shortened",
            training("dpo-textcraft", "dpo-shortened", f"{_PLAYED} --pairs.truncated shorten"),
            BASE,
        ),
        Row(
            "DPO, sigmoid_norm",
            training("dpo-textcraft", "dpo-sigmoid-norm", f"{_PLAYED} --loss sigmoid_norm --beta 2"),
            BASE,
        ),
        Row(CLONED, evol, BASE, "iteration-0000/sft/model"),
        *(
            Row(f"AgentEvol, iteration {number}", evol, CLONED, f"iteration-{number:04d}/sft/model")
            for number in range(1, iterations + 1)
        ),
        Row(
            "the expert's episodes of all training goals",
            training("sft-textcraft", "sft-all-goals", f"{expert} --data.episodes 299 --data.keep success"),
            CLONED,
        ),
    ]


# Running.


def run_all(rows: Sequence[Row], console: Console, *, quick: bool) -> None:
    """Train and play what hasn't been trained and played, of one seed."""
    for row in rows:
        train(row.training, console, quick=quick)
        for manner in MANNERS:
            if not (row.played(manner) / "report.json").exists():
                call(f"{row.command(manner)}{' --tasks 4' if quick else ''}", console)


# What came of it.


def compared(folder: RunFolder) -> dict[str, float]:
    """Of the pairs that a run of direct preference optimization has learned from: how many, and the mean number of
    turns compared on each side.
    """
    from agentgym_eval.data.pairs import make_pairs

    _, config, _ = RunFolder.open(folder.path)
    assert isinstance(config, DPOConfig)
    pairs = make_pairs(folder.read_data(), config.pairs)
    turns = {
        side: sum(len(getattr(pair, side).turns) - pair.shared for pair in pairs) / len(pairs)
        for side in ("chosen", "rejected")
    }
    return {"pairs": len(pairs), **turns}


def log_ratios(folder: RunFolder) -> dict[str, float]:
    """How much likelier than before the last step's episodes have become to the model, in nats, on each side."""
    _, config, _ = RunFolder.open(folder.path)
    assert isinstance(config, DPOConfig)
    *_, last = folder.read_metrics()
    return {side: last[f"rewards/{side}"] / config.beta for side in ("chosen", "rejected")}


def record(row: Row, seed: int) -> dict[str, Any]:
    """What became of a row in one seed, as JSON values."""
    folder = RunFolder(row.training.path)
    read = {manner: json.loads((row.played(manner) / "report.json").read_text())["overall"] for manner in MANNERS}
    found: dict[str, Any] = {"model": row.name, "against": row.against, "seed": seed}
    match RunFolder.open(folder.path)[1]:
        case DPOConfig():
            found["learned"] = compared(folder)
            found["log_ratios"] = log_ratios(folder)
        case AgentEvolConfig():
            lines = list(folder.read_metrics())
            number = int(row.model.split("/")[0].rpartition("-")[2])
            found["learned"] = {name: lines[number][name] for name in ("data", "kept")}
            found["explored"] = lines[number]["sampled"]["success"]
        case _:
            found["learned"] = {"data": len(folder.read_data())}
    return found | {
        "commit": commits([folder.path]),
        "commands": [row.training.command, *(row.command(manner) for manner in MANNERS)],
        "cpu_seconds": json.loads((folder.path / TOOK).read_text())["cpu_seconds"],
        **{
            manner: {name: figures[name] for name in ("tasks", "episodes", "failed", "success", "turns", "pass_at")}
            for manner, figures in read.items()
        },
    }


def differences(records: Sequence[dict[str, Any]], name: str) -> Difference:
    """Sampled success of the models of this name, less that of the models that they are compared with, over seeds."""
    own = {r["seed"]: r for r in records if r["model"] == name}
    other = next(iter(own.values()))["against"]
    theirs = {r["seed"]: r for r in records if r["model"] == other}
    sides = [[by[seed]["sampled"]["success"]["mean"] for seed in sorted(own)] for by in (theirs, own)]
    return over_seeds(*sides)


def report(records: Sequence[dict[str, Any]], folder: Path, console: Console, command: str) -> None:
    """Write the page and the figures, and show the table."""
    names = list(dict.fromkeys(r["model"] for r in records))
    found = {name: differences(records, name) for name in names if name != BASE}
    adjusted = holm({name: difference.p for name, difference in found.items()})
    rows = [_cells([r for r in records if r["model"] == name], found.get(name), adjusted.get(name)) for name in names]
    show("Success on all test goals, over seeds", rows, console)
    folder.mkdir(parents=True, exist_ok=True)
    first = [r for r in records if r["seed"] == records[0]["seed"]]
    tests = [d.detectable for d in found.values()]
    page = _PAGE.format(
        table=markdown(rows),
        command=command,
        commits=", ".join(dict.fromkeys(r["commit"] for r in records)),
        train="\n".join(dict.fromkeys(r["commands"][0] for r in first)),
        evaluate="\n".join(first[0]["commands"][1:]),
        tasks=first[0]["sampled"]["tasks"],
        seeds=len({r["seed"] for r in records}),
        detectable=f"{100 * min(tests):.1f} to {100 * max(tests):.1f}",
        failed=sum(r[manner]["failed"] for r in records for manner in MANNERS),
        log_ratios="; ".join(
            "{}: {:+.0f} and {:+.0f}".format(
                name, *(_mean(records, name, "log_ratios", side) for side in ("chosen", "rejected"))
            )
            for name in names
            if name.startswith("DPO")
        ),
        explored=", ".join(
            f"{100 * _mean(records, name, 'explored'):.0f}%" for name in names if re.search("iteration [1-9]", name)
        ),
    )
    (folder / "from-data.md").write_text(page, encoding="utf-8")
    (folder / "from-data.json").write_text(json.dumps(records, indent=1) + "\n")


def _mean(records: Sequence[dict[str, Any]], name: str, *keys: str) -> float:
    values = [reduce(lambda value, key: value[key], keys, r) for r in records if r["model"] == name]
    return sum(values) / len(values)


def _cells(own: Sequence[dict[str, Any]], difference: Difference | None, p: float | None) -> dict[str, str]:
    def mean(figure: str, manner: str = "sampled", k: str = "") -> float:
        values = [r[manner][figure][k]["mean"] if k else r[manner][figure]["mean"] for r in own]
        return sum(values) / len(values)

    def learned() -> str:
        keys = own[0]["learned"]
        means = {key: sum(r["learned"][key] for r in own) / len(own) for key in keys}
        if "pairs" in means:
            return "{pairs:.0f} pairs, {chosen:.1f} and {rejected:.1f} turns compared".format(**means)
        return f"{means['data']:.0f} episodes" + (
            f", {means['kept']:.0f} of them kept last" if means.get("kept") else ""
        )

    interval = difference and difference.difference
    return {
        "model": own[0]["model"],
        "learned from": learned(),
        "success, sampled": f"{100 * mean('success'):.1f}",
        "greedy": f"{100 * mean('success', 'greedy'):.1f}",
        "pass@4": f"{100 * mean('pass_at', k='4'):.1f}",
        "turns": f"{mean('turns'):.1f}",
        "compared with": own[0]["against"] or "–",
        "difference": f"{100 * interval.mean:+.1f} ({100 * interval.low:+.1f} to {100 * interval.high:+.1f})"
        if interval
        else "–",
        "p (Holm)": "–" if p is None else f"{p:.3f}",
        "detectable": f"{100 * difference.detectable:.1f}" if difference else "–",
        "minutes of CPU": f"{sum(r['cpu_seconds'] for r in own) / len(own) / 60:.1f}",
    }


_PAGE = """# Learning from data: SFT, DPO, AgentEvol

```sh
{command}
```

Small models from scratch on one thread of a CPU, with nothing downloaded; {seeds} training seeds, at commit {commits}.
Every method of a seed begins with the same model, `sft-textcraft`'s, which has imitated clumsy experts. The commands of
one seed:

```sh
{train}
```

Each model plays all {tasks} test goals of the world that it was trained in, four times at the training temperature and
once greedily; the model of SFT, for example:

```sh
{evaluate}
```

{table}

Success in percent, means over seeds. Differences are of sampled success, paired by seed, with 95% t-intervals over
seeds; p-values are adjusted over all comparisons by Holm's method. Detectable is the smallest difference that four of
five such comparisons would show: here {detectable} points. "Minutes of CPU" are the run's own, of AgentEvol those of
all its iterations. Failed episodes: {failed}.

## Why a method gains or doesn't

**DPO.** A pair is two episodes of the same task by the same model, one of which did better. A failed episode goes on to
the horizon, so that the rejected side has more than twice as many turns as the chosen one ("learned from"), and the
margin of the loss, a difference of sums over tokens, grows by the surplus turns alone: the rejected side becomes
unlikely, and the chosen one doesn't become likelier. How the log-probability of a chosen and of a rejected side had
changed at the end, in nats:
{log_ratios}.
`--pairs.truncated shorten` cuts the rejected side to as many turns as the chosen one has; `--loss sigmoid_norm` divides
by the number of tokens.

**AgentEvol.** Each iteration lets the last model explore all training goals, and learns from what succeeded. The models
that explored succeeded in {explored} of their episodes on training goals, while the success on held-out goals, in the
table, grew little or not at all. Nor are more training goals what is missing: the expert's episodes of all of them, in
the last row, are the most that exploring could find. A model of this size learns recipes by heart.
"""


def main() -> None:
    """Run what hasn't been run, or report what has."""
    (asked, command), console = command_line(__doc__ or ""), Console()
    tables = {seed: rows_of(asked.out, seed, quick=asked.quick) for seed in asked.seeds}
    if asked.report is None:
        with ThreadPoolExecutor(asked.processes) as pool:
            list(pool.map(lambda rows: run_all(rows, console, quick=asked.quick), tables.values()))
        return
    ended = {seed: rows for seed, rows in tables.items() if all(row.ended for row in rows)}
    if not ended:
        raise SystemExit(f"No seed has ended in {asked.out}; run them first.")
    report([record(row, seed) for seed, rows in ended.items() for row in rows], asked.report, console, command)


if __name__ == "__main__":
    main()
