"""SFT, DPO and AgentEvol on TextCraft with a model from scratch: success on the test tasks after each, with commands.

    uv run python benchmarks/from_data.py
    uv run python benchmarks/from_data.py --report docs/results

Each row is a model that one of the recipes leaves, trained by `uv run train` and played by `uv run evaluate`, both just
as anyone would run them. The first command runs what hasn't been run yet (`--quick`: miniatures, which show that it
works); the second reads what they left and writes a page and JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from agentgym_trainer.config import DPO, SFT, AgentEvol
from agentgym_trainer.recipes import RECIPES, tiny
from agentgym_trainer.run_folder import RunFolder
from many_runs import markdown, show  # the file beside this one
from rich.console import Console

TOOK = "took.json"
"""In a run's folder when it has ended: what its command took."""
MANNERS = {"sampled": "--samples 4 --temperature 1", "greedy": "--samples 1 --temperature 0"}


@dataclass(frozen=True, slots=True)
class Training:
    """A recipe with its command."""

    recipe: str
    runs: Path

    @property
    def path(self) -> Path:
        """Folder of the run."""
        return self.runs / self.recipe

    @property
    def command(self) -> str:
        """As anyone would run it."""
        named = Path(RECIPES[self.recipe].config.model)
        begun_with = self.runs / named.relative_to("runs") if named.parts[0] == "runs" else named
        model = "" if begun_with == named else f" --model {begun_with}"
        return f"uv run train {self.recipe}{model} --out {self.path}"


@dataclass(frozen=True, slots=True)
class Row:
    """A model of the table."""

    name: str
    training: Training
    model: str
    """In the folder of its run."""

    @property
    def path(self) -> Path:
        """Where the model lies."""
        return self.training.path / self.model

    def played(self, manner: str) -> Path:
        """Folder of the evaluation."""
        return self.training.runs / "played" / f"{self.training.recipe}-{self.model.replace('/', '-')}-{manner}"

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


def rows_of(runs: Path, *, quick: bool) -> list[Row]:
    """The table, from top to bottom."""
    sft, dpo, evol = (Training(f"{name}-textcraft", runs) for name in ("sft", "dpo", "evol"))
    config = RECIPES[evol.recipe].config
    assert isinstance(config, AgentEvol)
    iterations = tiny(config).iterations if quick else config.iterations
    return [
        Row("random weights", sft, "start"),
        Row("SFT", sft, "model"),
        Row("SFT, then DPO", dpo, "model"),
        *(
            Row(f"AgentEvol, iteration {number}", evol, f"iteration-{number:04d}/sft/model")
            for number in range(iterations + 1)
        ),
    ]


# Running.


def run_all(rows: Sequence[Row], console: Console, *, quick: bool) -> None:
    """Train and play what hasn't been trained and played."""
    for training in dict.fromkeys(row.training for row in rows):
        if not (training.path / TOOK).exists():
            train(training, console, quick=quick)
    for row in rows:
        for manner in MANNERS:
            if not (row.played(manner) / "report.json").exists():
                call(f"{row.command(manner)}{' --tasks 4' if quick else ''}", console)


def train(training: Training, console: Console, *, quick: bool) -> None:
    """Run the command of a recipe, or go on with it, and leave what it took."""
    begun = (training.path / "run.json").exists()
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = f"{training.command}{' --tiny' if quick else ''}"
    call(f"uv run train --resume {training.path}" if begun else command, console)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # Of a run that was interrupted only the last sitting is known.
    took = {"seconds": round(time.monotonic() - began, 1), "cpu_seconds": round(cpu, 1), "resumed": begun}
    (training.path / TOOK).write_text(json.dumps(took) + "\n")


def call(command: str, console: Console) -> None:
    """Run a command on one thread, so that figures don't hang on how many a machine has.

    Raises:
        SystemExit: when it fails.
    """
    console.print(command, highlight=False, soft_wrap=True, markup=False)
    if subprocess.run(shlex.split(command), env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False).returncode:
        raise SystemExit(f"This failed: {command}")


# What came of it.


def imitated_tokens(folder: RunFolder) -> int:
    """Tokens that a run of supervised fine-tuning has read, each time that it read them."""
    from agentgym_trainer.models import load_chat
    from agentgym_trainer.sft import encode_examples

    _, config, _ = RunFolder.open(folder.path)
    assert isinstance(config, SFT)
    examples = encode_examples(load_chat(str(folder.model)), folder.read_data(), config.generation.max_context)
    return config.epochs * sum(len(example.ids) for example in examples)


def compared_tokens(folder: RunFolder) -> int:
    """Tokens of all pairs that a run of direct preference optimization has read, each time that it read them."""
    from agentgym_eval.data.pairs import make_pairs
    from agentgym_trainer.dpo import encode_pair
    from agentgym_trainer.models import load_chat

    _, config, _ = RunFolder.open(folder.path)
    assert isinstance(config, DPO)
    chat = load_chat(str(folder.model))
    rows = [encode_pair(chat, pair) for pair in make_pairs(folder.read_data(), config.pairs)]
    return config.epochs * sum(len(segment["ids"]) for row in rows for side in row.values() for segment in side)


def _tokens_and_seconds(row: Row) -> tuple[int, float]:
    """What training the model took, without what its own run began with; of AgentEvol all iterations so far."""
    folder = RunFolder(row.training.path)
    match RunFolder.open(folder.path)[1]:
        case _ if row.model == "start":
            return 0, 0.0
        case AgentEvol():
            number = int(row.model.split("/")[0].rpartition("-")[2])
            sft = [RunFolder(folder.path / f"iteration-{n:04d}" / "sft") for n in range(number + 1)]
            seconds = accumulate(line["seconds"] for line in folder.read_metrics())
            return sum(map(imitated_tokens, sft)), list(seconds)[number]
        case DPO():
            return compared_tokens(folder), json.loads((folder.path / TOOK).read_text())["seconds"]
        case _:
            return imitated_tokens(folder), json.loads((folder.path / TOOK).read_text())["seconds"]


def record(row: Row) -> dict[str, Any]:
    """A row of the table, as JSON values.

    Raises:
        SystemExit: when it hasn't been trained and played.
    """
    reports = {manner: row.played(manner) / "report.json" for manner in MANNERS}
    for path in reports.values():
        if not path.exists():
            raise SystemExit(f"{path} is missing; run what hasn't been run first.")
    read = {manner: json.loads(path.read_text())["overall"] for manner, path in reports.items()}
    tokens, seconds = _tokens_and_seconds(row)
    return {
        "model": row.name,
        "commands": [row.training.command, *(row.command(manner) for manner in MANNERS)],
        "tokens": tokens,
        "seconds": round(seconds),
        **{
            manner: {name: figures[name] for name in ("tasks", "episodes", "failed", "success", "turns", "pass_at")}
            for manner, figures in read.items()
        },
    }


def report(rows: Sequence[Row], folder: Path, console: Console) -> None:
    """Write the page and the figures, and show the table."""
    records = [record(row) for row in rows]
    table = [_cells(found) for found in records]
    show("Success on all test tasks", table, console)
    folder.mkdir(parents=True, exist_ok=True)
    trainings = dict.fromkeys(row.training for row in rows)
    took = {training.recipe: json.loads((training.path / TOOK).read_text()) for training in trainings}
    page = _PAGE.format(
        table=markdown(table),
        train="\n".join(training.command for training in trainings),
        evaluate="\n".join(rows[1].command(manner) for manner in MANNERS),
        tasks=records[0]["sampled"]["tasks"],
        cpu=", ".join(f"{recipe} {seconds['cpu_seconds'] / 60:.1f}" for recipe, seconds in took.items()),
        failed=sum(found[manner]["failed"] for found in records for manner in MANNERS),
        about="\n".join(f"- `{training.recipe}`: {RECIPES[training.recipe].about}." for training in trainings),
    )
    (folder / "from-data.md").write_text(page, encoding="utf-8")
    (folder / "from-data.json").write_text(json.dumps({"rows": records, "took": took}, indent=1) + "\n")


def _cells(found: dict[str, Any]) -> dict[str, str]:
    def interval(figures: dict[str, Any]) -> str:
        return "{mean:.3f} ({low:.3f} to {high:.3f})".format(**figures)

    return {
        "model": found["model"],
        "pass@1, sampled": interval(found["sampled"]["success"]),
        "pass@4, sampled": interval(found["sampled"]["pass_at"]["4"]),
        "pass@1, greedy": interval(found["greedy"]["success"]),
        "turns, sampled": f"{found['sampled']['turns']['mean']:.1f}",
        "tokens read": f"{found['tokens']:,}",
        "seconds": f"{found['seconds']:,}",
    }


_PAGE = """# Learning from data: SFT, DPO, AgentEvol

```sh
uv run python benchmarks/from_data.py
```

Small models from scratch on one thread of a CPU, with nothing downloaded. The benchmark runs these commands, which work
alone as well:

```sh
{train}
```

and lets each model play all {tasks} test tasks of the world that it was trained in, four times at the training
temperature and once greedily; the model of SFT, for example:

```sh
{evaluate}
```

{table}

95% intervals over tasks, as `evaluate` reports them. "Tokens read" is what went through the learner, each time that it
did: of SFT the episodes, of DPO both sides of all pairs, of AgentEvol the episodes of all iterations so far; what the
model that a run began with had read isn't counted again. "Seconds" is the run itself, with its evaluations and with the
episodes that were played for it, of AgentEvol up to and with the iteration; whatever else a machine does makes them
more. In minutes of CPU the commands took: {cpu}. Failed episodes: {failed}.

What the rows are:

{about}

From nothing, a model of 0.7 million parameters comes to craft about one in seven goals that it has never seen, in one
step or more, with amounts that it works out; that much imitation of clumsy experts gives. Perfect experts gave it
nothing: five trials with them ended at 0.000, with the 333 training goals learned by heart. DPO from its own episodes
changed nothing that the intervals could show. What helped most is behavioural cloning of 333 faultless episodes on
top (iteration 0 of AgentEvol: twice the success when sampled); the two rounds of exploring added nothing to it here,
since the model explores the goals that it knows by heart, and held-out ones aren't played.
"""


def main() -> None:
    """Run what hasn't been run, or report what has."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument("--quick", action="store_true", help="miniature runs: shows that it works")
    parser.add_argument("--report", type=Path, help="write the page and JSON to this folder; runs nothing")
    asked, console = parser.parse_args(), Console()
    rows = rows_of(asked.out, quick=asked.quick)
    if asked.report is None:
        run_all(rows, console, quick=asked.quick)
    else:
        report(rows, asked.report, console)


if __name__ == "__main__":
    main()
