"""Compare SFT, DPO and AgentEvol on TextCraft with models from scratch, over training seeds: success on test goals.

    uv run python benchmarks/from_data.py --processes 2 --seeds 0 1 2 3 4
    uv run python benchmarks/from_data.py --report docs/results --seeds 0 1 2 3 4

Models are trained by `uv run train` and evaluated by `uv run evaluate`. All methods of a seed begin with the same SFT
model. AgentEvol gets the expert's episodes of 60 training goals and explores the others; a run with the expert's
episodes of all training goals is the upper bound. The first command finishes all runs; the second writes a page and
JSON from the finished seeds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

from agentgym_eval.metrics.comparison import Difference, holm
from agentgym_eval.metrics.seeds import over_seeds
from agentgym_trainer.config import AgentEvolConfig, DPOConfig
from agentgym_trainer.recipes import RECIPES, tiny
from agentgym_trainer.run.folder import RunFolder
from commands import TOOK, Training, call, train
from harness import markdown, show, study_arguments, write_report
from outcomes import commits

SAMPLING = {"sampled": "--samples 4 --temperature 1", "greedy": "--samples 1 --temperature 0"}
BASE = "SFT"
CLONED = "AgentEvol, iteration 0 (60 goals of the expert)"
_SAME_PAIRS = "--data.files RUNS/dpo-textcraft/data.jsonl"
"""The episodes of the SFT model, the same for all runs of DPO."""


@dataclass(frozen=True, slots=True)
class Row:
    """A model of the table, with one seed."""

    name: str
    training: Training
    against: str = ""
    """Name of the row that it is compared with."""
    model: str = "model"
    """Folder of the model in the run folder."""

    @property
    def path(self) -> Path:
        """Folder of the model."""
        return self.training.path / self.model

    def evaluation(self, sampling: str) -> Path:
        """Return the folder of an evaluation."""
        return self.training.runs / "played" / f"{self.training.path.name}-{self.model.replace('/', '-')}-{sampling}"

    def command(self, sampling: str) -> str:
        """Return the command that evaluates it on all test tasks of the environment that it was trained in."""
        config = RECIPES[self.training.recipe].config
        world = config.world
        options = " ".join(f'"{option}"' for option in world.options)
        return " ".join(
            (
                f"uv run evaluate --env {world.env} --options {options} --policy hf:{self.path} --split test",
                f"--agent {world.agent} {'' if world.instructions else '--no-instructions '}{SAMPLING[sampling]}",
                f"--horizon {config.horizon.longest} --max-tokens {config.generation.max_tokens}",
                f"--out {self.evaluation(sampling)}",
            )
        )

    @property
    def finished(self) -> bool:
        """Whether it is trained and evaluated."""
        return all((self.evaluation(sampling) / "report.json").exists() for sampling in SAMPLING)


def rows_of(out: Path, seed: int, *, quick: bool) -> list[Row]:
    """Return the rows of a seed, from top to bottom."""
    runs, seeded = out / f"seed-{seed}", f"--seed {seed}"

    def training(recipe: str, name: str = "", flags: str = "") -> Training:
        return Training(recipe, runs, name, f"{seeded} {flags}".strip())

    evol = training("evol-textcraft")
    config = RECIPES[evol.recipe].config
    assert isinstance(config, AgentEvolConfig)
    iterations = tiny(config).iterations if quick else config.iterations
    expert = f"--model RUNS/sft-textcraft/model --data.noise 0 --epochs 1 --optimizer.lr {config.optimizer.lr:g}"
    shortened = training("dpo-textcraft", "dpo-shortened", f"{_SAME_PAIRS} --pairs.truncated shorten")
    sigmoid_norm = training("dpo-textcraft", "dpo-sigmoid-norm", f"{_SAME_PAIRS} --loss sigmoid_norm --beta 2")
    all_goals = training("sft-textcraft", "sft-all-goals", f"{expert} --data.episodes 299 --data.keep success")
    return [
        Row(BASE, training("sft-textcraft")),
        Row("DPO", training("dpo-textcraft"), BASE),
        Row("DPO, rejected sides shortened", shortened, BASE),
        Row("DPO, sigmoid_norm", sigmoid_norm, BASE),
        Row(CLONED, evol, BASE, "iteration-0000/sft/model"),
        *(
            Row(f"AgentEvol, iteration {number}", evol, CLONED, f"iteration-{number:04d}/sft/model")
            for number in range(1, iterations + 1)
        ),
        Row("the expert's episodes of all training goals", all_goals, CLONED),
    ]


def finish(rows: Sequence[Row], *, quick: bool) -> None:
    """Train and evaluate the models of a seed, as far as it isn't done yet."""
    for row in rows:
        train(row.training, quick=quick)
        for sampling in SAMPLING:
            if not (row.evaluation(sampling) / "report.json").exists():
                call(f"{row.command(sampling)}{' --tasks 4' if quick else ''}")


# Outcomes.


def pair_statistics(folder: RunFolder, config: DPOConfig) -> dict[str, float]:
    """Return the number of pairs of a DPO run, and the mean number of turns compared on each side."""
    from agentgym_eval.data.pairs import make_pairs

    pairs = make_pairs(folder.read_data(), config.pairs)
    turns = {
        side: sum(len(getattr(pair, side).turns) - pair.shared for pair in pairs) / len(pairs)
        for side in ("chosen", "rejected")
    }
    return {"pairs": len(pairs), **turns}


def record(row: Row, seed: int) -> dict[str, Any]:
    """Return the results of a row with one seed."""
    folder = RunFolder(row.training.path)
    found: dict[str, Any] = {"model": row.name, "against": row.against, "seed": seed}
    lines = list(folder.read_metrics())
    match RunFolder.open(folder.path)[1]:
        case DPOConfig() as config:
            found["learned"] = pair_statistics(folder, config)
            # The change of the log-probabilities of the last step's episodes, in nats.
            sides = ("chosen", "rejected")
            found["log_ratios"] = {side: lines[-1][f"rewards/{side}"] / config.beta for side in sides}
        case AgentEvolConfig():
            number = int(row.model.split("/")[0].rpartition("-")[2])
            found["learned"] = {name: lines[number][name] for name in ("data", "kept")}
            found["explored"] = lines[number]["sampled"]["success"]
        case _:
            found["learned"] = {"data": len(folder.read_data())}
    found |= {
        "commit": commits([folder.path]),
        "commands": [row.training.command, *(row.command(sampling) for sampling in SAMPLING)],
        "cpu_seconds": json.loads((folder.path / TOOK).read_text())["cpu_seconds"],
    }
    for sampling in SAMPLING:
        overall = json.loads((row.evaluation(sampling) / "report.json").read_text())["overall"]
        names = ("tasks", "episodes", "failed", "success", "turns", "pass_at")
        found[sampling] = {name: overall[name] for name in names}
    return found


def difference(
    records: Sequence[dict[str, Any]], name: str, against: str = "", sampling: str = "sampled"
) -> Difference:
    """Return the difference in success to another model, or to the one that this one is compared with, over seeds."""
    own = {r["seed"]: r for r in records if r["model"] == name}
    other = against or next(iter(own.values()))["against"]
    theirs = {r["seed"]: r for r in records if r["model"] == other}
    sides = [[by[seed][sampling]["success"]["mean"] for seed in sorted(own)] for by in (theirs, own)]
    return over_seeds(*sides)


def _points(found: Difference) -> str:
    at = found.difference
    return f"{100 * at.mean:+.1f} ({100 * at.low:+.1f} to {100 * at.high:+.1f})"


def report(records: Sequence[dict[str, Any]], folder: Path, command: str) -> None:
    """Write the page and JSON."""
    names = list(dict.fromkeys(r["model"] for r in records))
    found = {name: difference(records, name) for name in names if name != BASE}
    adjusted = holm({name: one.p for name, one in found.items()})
    rows = [_row([r for r in records if r["model"] == name], found.get(name), adjusted.get(name)) for name in names]
    show("Success on all test goals, over seeds", rows)
    first = [r for r in records if r["seed"] == records[0]["seed"]]
    detectable = [100 * one.detectable for one in found.values()]
    changes = [
        f"{name}: {_mean(records, name, 'log_ratios', 'chosen'):+.0f} and "
        f"{_mean(records, name, 'log_ratios', 'rejected'):+.0f}"
        for name in names
        if name.startswith("DPO")
    ]
    greedy = {name: difference(records, name, BASE, "greedy") for name in found}
    explored = [_mean(records, name, "explored") for name in names if re.search("iteration [1-9]", name)]
    page = _PAGE.format(
        table=markdown(rows),
        command=command,
        commits=", ".join(dict.fromkeys(r["commit"] for r in records)),
        train="\n".join(dict.fromkeys(r["commands"][0] for r in first)),
        evaluate="\n".join(first[0]["commands"][1:]),
        tasks=first[0]["sampled"]["tasks"],
        seeds=len({r["seed"] for r in records}),
        detectable=f"{min(detectable):.1f} to {max(detectable):.1f}",
        failed=sum(r[sampling]["failed"] for r in records for sampling in SAMPLING),
        log_ratios="; ".join(changes),
        all_goals=_points(list(found.values())[-1]),
        greedy="; ".join(f"{name} {_points(one)}, p {one.p:.2f}" for name, one in greedy.items() if one.p < 0.05),
        explored=", ".join(f"{share:.0%}" for share in explored),
    )
    write_report(folder, "from-data", page, records)


def _mean(records: Sequence[dict[str, Any]], name: str, *keys: str) -> float:
    """Return the mean over seeds of a value of the model of this name."""
    values: list[Any] = [reduce(lambda value, key: value[key], keys, r) for r in records if r["model"] == name]
    return sum(values) / len(values)


def _row(own: Sequence[dict[str, Any]], compared: Difference | None, p: float | None) -> dict[str, str]:
    name = own[0]["model"]
    learned = {key: _mean(own, name, "learned", key) for key in own[0]["learned"]}
    if "pairs" in learned:
        data = "{pairs:.0f} pairs, {chosen:.1f} and {rejected:.1f} turns compared".format(**learned)
    else:
        data = f"{learned['data']:.0f} episodes"
        data += f", after an exploration that kept {learned['kept']:.0f}" if learned.get("kept") else ""
    return {
        "model": name,
        "training data": data,
        "success, sampled": f"{100 * _mean(own, name, 'sampled', 'success', 'mean'):.1f}",
        "greedy": f"{100 * _mean(own, name, 'greedy', 'success', 'mean'):.1f}",
        "pass@4": f"{100 * _mean(own, name, 'sampled', 'pass_at', '4', 'mean'):.1f}",
        "turns": f"{_mean(own, name, 'sampled', 'turns', 'mean'):.1f}",
        "compared with": own[0]["against"] or "–",
        "difference": _points(compared) if compared else "–",
        "p (Holm)": "–" if p is None else f"{p:.3f}",
        "detectable": f"{100 * compared.detectable:.1f}" if compared else "–",
        "CPU minutes": f"{_mean(own, name, 'cpu_seconds') / 60:.1f}",
    }


_PAGE = """# Learning from data: SFT, DPO, AgentEvol

```sh
{command}
```

Small models from scratch on one CPU thread, without downloads; {seeds} training seeds, at commit {commits}.
Of these, 228d543b and a0a44697 aren't in the history. All methods of a seed begin with the same model,
`sft-textcraft`'s, which has imitated noisy experts. The commands of one seed:

```sh
{train}
```

Each model plays all {tasks} test goals of the environment that it was trained in, four times at the training
temperature and once greedily. For the SFT model:

```sh
{evaluate}
```

{table}

Success in percent, means over seeds. Differences are of sampled success, paired by seed, with 95% t-intervals over
seeds; p-values are adjusted over all comparisons by Holm's method. Detectable is the smallest difference that such a
comparison shows with a probability of 80%: here {detectable} points. CPU minutes are those of the run; of AgentEvol,
those of all iterations together. Failed episodes: {failed}.

## Why a method gains or doesn't

**DPO.** A pair is two episodes of the same task by the same model, one of which did better. A failed episode continues
to the horizon, so the rejected side has more than twice as many turns as the chosen one ("training data"), and the
margin of the loss, a difference of sums over tokens, grows by the additional turns alone: the rejected side becomes
less likely, and the chosen one doesn't become more likely. The change of the log-probability of a chosen and of a
rejected side by the end, in nats:
{log_ratios}.
`--pairs.truncated shorten` cuts the rejected side to as many turns as the chosen one has; `--loss sigmoid_norm` divides
by the number of tokens.

**AgentEvol.** In each iteration, the last model explores all training goals, and is then trained on the successful
episodes. The exploring models succeeded in {explored} of their episodes on training goals, while the success on
held-out goals, in the table, grew little or not at all. Kept episodes are added to those of earlier iterations, but not
those that are known already. An iteration trains on more episodes, and so with more updates, than the one before. The
last row has the expert's episodes of all training goals, as if exploration had found them all, but only in one pass,
where AgentEvol makes three; no benefit of them over those of 60 goals is detected: {all_goals} points. So more passes
might show one.

**Greedy success** of all trained models is below that of SFT in the table, so part of the gains in sampled success may
be sharper sampling. In points, unadjusted, with p below 0.05: {greedy}.
"""


def main() -> None:
    """Finish all runs, or report them."""
    settings, command = study_arguments(__doc__)
    tables = {seed: rows_of(settings.out, seed, quick=settings.quick) for seed in settings.seeds}
    if settings.report is None:
        with ThreadPoolExecutor(settings.processes) as threads:
            list(threads.map(partial(finish, quick=settings.quick), tables.values()))
        return
    finished = {seed: rows for seed, rows in tables.items() if all(row.finished for row in rows)}
    if not finished:
        raise SystemExit(f"No seed is finished in {settings.out}; run the script without --report first.")
    report([record(row, seed) for seed, rows in finished.items() for row in rows], settings.report, command)


if __name__ == "__main__":
    main()
