"""What the studies of many short training runs share (`algorithms.py`, `length_bias.py`, `scaling_inter.py`,
`sft_then_rl.py`): running them, and reading what they came to.

A run is a configuration and a budget, of environment steps (turns played in training), tokens or updates: it ends with
the first update that reaches it. All runs of a seed begin with the same model. Several processes run at a time; a run
that has ended isn't run again, and one that was killed goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
from agentgym_envs import Episode, read_episodes
from agentgym_trainer.config import BaseConfig, Evaluation, RLConfig, WarmStart
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.stopping import Stopping
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

Figures = NDArray[np.float64]
Unit = Literal["env_steps", "tokens", "updates"]
"""Turns played in training; all tokens of the episodes played in training, whether they took part in the loss or not;
or updates."""
PLAYED = "played.jsonl"
"""In a run's folder: episodes on held-out tasks, played when it had ended. Where it is, there is nothing more to do."""
_DRAWS = 2000
_UPDATES = 10**6
"""More than any budget lasts."""


@dataclass(frozen=True, slots=True)
class Run:
    """One training run."""

    method: str
    seed: int
    config: RLConfig
    budget: int
    """It ends with the update that reaches it."""
    path: Path
    samples: int = 2
    """Episodes of every held-out task, played when it has ended."""
    tasks: int = 0
    """So many held-out tasks only; 0 is all of them."""
    unit: Unit = "env_steps"
    """What the budget counts."""
    split: Literal["dev", "test"] = "test"
    """Of the held-out tasks: dev where settings are chosen by the result."""


def spent(lines: Iterable[dict[str, Any]], unit: Unit) -> list[int]:
    """What a run had spent after each of its updates, from the lines of its metrics."""
    if unit == "env_steps":
        return [line["env_steps"] for line in lines]
    if unit == "updates":
        return [line["step"] for line in lines]
    return list(accumulate(line["tokens"]["total"] for line in lines))


# Running.


def start_of(asked: Run, path: Path) -> Path:
    """The model that a run begins with, made and tested in a run folder of its own if that hasn't been done."""
    folder, config = RunFolder(path), asked.config
    if not folder.start.exists():
        least = Evaluation(tasks=1, test=False, samples=1, ks=(1,))
        made = replace(
            config, steps=1, tasks_per_step=1, group_size=2, minibatches=1, evaluation=least, horizon=_fixed(config)
        )
        _train(replace(asked, config=made, path=path))
    play_held_out(folder.start, asked, path / PLAYED)
    return folder.start


def run(asked: Run, start: Path) -> str:
    """Train to the budget and play the held-out tasks, unless that has been done. Returns what is worth saying."""
    began = time.monotonic()
    if not (asked.path / PLAYED).exists():
        config = replace(asked.config, model=str(start), warm_start=WarmStart(episodes=0), steps=_UPDATES)
        _train(replace(asked, config=config))
        from agentgym_trainer.run.checkpoint import Checkpoints

        latest = Checkpoints(RunFolder(asked.path).checkpoints, keep=config.keep_checkpoints, say=print).latest()
        play_held_out(latest, asked, asked.path / PLAYED)
    return f"{asked.method}, seed {asked.seed}: {time.monotonic() - began:.0f} s"


def _fixed(config: RLConfig) -> FixedHorizon:
    return FixedHorizon(config.horizon.longest)


def _train(asked: Run) -> None:
    from agentgym_trainer.trainers.rl import train

    folder = open_run(asked.config, asked.path)
    with folder.path.joinpath("log.txt").open("a") as log:
        # Asked of the file: a run that goes on takes back the lines of updates that it makes again.
        stopping = _AtBudget(lambda: max(spent(folder.read_metrics(), asked.unit), default=0) >= asked.budget)
        train(asked.config, folder, RunConsole(Console(file=log, width=160)), stopping)


class _AtBudget(Stopping):
    """Ends a run after the update that reaches its budget."""

    def __init__(self, is_spent: Callable[[], bool]) -> None:
        super().__init__()
        self._is_spent = is_spent

    def __call__(self) -> bool:
        return super().__call__() or self._is_spent()


def open_run(config: BaseConfig, path: Path) -> RunFolder:
    """The folder of a run, new or begun before.

    Raises:
        SystemExit: when it was begun with other settings.
    """
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    if not (path / "run.json").exists():
        return RunFolder.create(path, config, "benchmark")
    folder, before, _ = RunFolder.open(path)
    if before != config:
        raise SystemExit(f"{path} holds a run with other settings; choose another --out, or remove it.")
    return folder


def play_held_out(model: Path | None, asked: Run, out: Path) -> None:
    """Let a model play the held-out tasks at the training temperature, unless that has been done."""
    if out.exists():
        return
    from agentgym_eval.runs.environments import spread
    from agentgym_trainer.policies import hf
    from agentgym_trainer.rollout.environments import episode_specs, open_environments
    from agentgym_trainer.rollout.runner import RolloutRequest, RolloutRunner

    config = asked.config
    generation, horizon, seed = config.generation, config.horizon.longest, config.seed
    player = hf(str(model), temperature=generation.temperature, seed=seed, max_tokens=generation.max_tokens)
    with open_environments(config) as worlds, RolloutRunner(player.engine) as rollouts:
        matches: list[RolloutRequest] = []
        for world in worlds:
            held_out = world.tasks.split(asked.split)
            tasks = spread(held_out, asked.tasks or len(held_out))
            matches.append(RolloutRequest(world, episode_specs(tasks, samples=asked.samples, seed=seed), horizon))
        lines = [episode.to_json() for episode in rollouts.play(matches, player)]
    unfinished = out.with_suffix(".unfinished")
    unfinished.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    unfinished.rename(out)


def run_all(runs: Sequence[Run], starts: Path, processes: int, console: Console) -> None:
    """Make the warm starts, one per seed, then run everything."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        first = {asked.seed: asked for asked in reversed(runs)}
        making = {seed: pool.submit(start_of, asked, starts / f"seed-{seed}") for seed, asked in first.items()}
        made = {seed: future.result() for seed, future in making.items()}
        console.print(f"Warm starts of {len(made)} seeds: {starts}", highlight=False, soft_wrap=True)
        for done, future in enumerate(as_completed([pool.submit(run, r, made[r.seed]) for r in runs]), 1):
            console.print(f"{done}/{len(runs)} {future.result()}", highlight=False, soft_wrap=True)


def by_method(runs: Sequence[Run], starts: Path) -> list[Outcome]:
    """What the runs came to, method by method.

    Raises:
        SystemExit: when some haven't ended.
    """
    missing = [asked.path for asked in runs if not (asked.path / PLAYED).exists()]
    if missing:
        raise SystemExit(f"{len(missing)} of {len(runs)} runs haven't ended, such as {missing[0]}; run them first.")
    found: dict[str, list[Run]] = {}
    for asked in runs:
        found.setdefault(asked.method, []).append(asked)
    return [outcome(of_one, starts) for of_one in found.values()]


def run_or_report(
    about: str,
    runs_of: Callable[..., list[Run]],
    report: Callable[[Sequence[Outcome], Path, Console, str], None],
) -> None:
    """The command line of such a benchmark: run what hasn't been run, or report what has.

    Args:
        about: The script's docstring.
        runs_of: All runs, from a folder, seeds, and whether they are to be miniatures (`quick`).
        report: Writes page, picture and JSON to a folder, given what came out and the command that ran it.
    """
    (asked, command), console = command_line(about), Console()
    runs, starts = runs_of(asked.out, asked.seeds, quick=asked.quick), asked.out / "starts"
    if asked.report is None:
        run_all(runs, starts, asked.processes, console)
    else:
        report(by_method(runs, starts), asked.report, console, command)


def command_line(about: str) -> tuple[argparse.Namespace, str]:
    """What such a benchmark is asked for, and the command that runs all of it; `about` is the script's docstring."""
    script = Path(sys.argv[0])
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs", script.stem), help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument("--quick", action="store_true", help="miniature runs: shows that it works")
    parser.add_argument("--report", type=Path, help="write the page, the picture and JSON to this folder; runs nothing")
    asked = parser.parse_args()
    return asked, f"uv run python benchmarks/{script.name} --seeds {' '.join(map(str, asked.seeds))}"


def commits(runs: Iterable[Path]) -> str:
    """At which commits of ours these runs began, as they say themselves; a plus where files differed from it."""
    about = [run / "run.json" for run in runs]
    begun = [json.loads(file.read_text(encoding="utf-8")).get("git") if file.exists() else None for file in about]
    named = {f"{git['commit'][:8]}{'+' * git['dirty']}" if git else "unknown" for git in begun}
    return ", ".join(sorted(named))


def markdown(rows: Sequence[dict[str, str]]) -> str:
    """A table."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def show(title: str, rows: Sequence[dict[str, str]], console: Console) -> None:
    """The same table for a terminal."""
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name)
    for row in rows:
        table.add_row(*row.values())
    console.print(table)


def miniature(config: RLConfig) -> RLConfig:
    """So small that it shows no more than that everything works."""
    return replace(
        config,
        tasks_per_step=2,
        group_size=4,
        minibatches=2,
        generation=replace(config.generation, max_tokens=8),
        warm_start=replace(config.warm_start, episodes=64, epochs=1),
        evaluation=replace(config.evaluation, tasks=6),
    )


# What runs came to.


@dataclass(frozen=True, slots=True)
class Outcome:
    """What there is to say of one method, over its seeds."""

    method: str
    seeds: tuple[int, ...]
    before: Figures
    """Success of the warm start, seeds x tasks."""
    after: Figures
    """Success at the end, seeds x tasks: the mean over a task's episodes."""
    turns: float
    """Of the episodes at the end."""
    curves: tuple[tuple[Figures, Figures], ...]
    """Of each seed: environment steps of its evaluations, and success of the evaluated tasks, evaluations x tasks."""
    updates: float
    failed: int
    lines: tuple[list[dict[str, Any]], ...]
    """The metrics of each seed."""


def outcome(runs: Sequence[Run], starts: Path) -> Outcome:
    """Read what the runs of one method and their warm starts left."""
    begun = [list(read_episodes(starts / f"seed-{asked.seed}" / PLAYED)) for asked in runs]
    ended = [list(read_episodes(asked.path / PLAYED)) for asked in runs]
    lines = tuple(list(RunFolder(asked.path).read_metrics()) for asked in runs)
    return Outcome(
        runs[0].method,
        tuple(asked.seed for asked in runs),
        np.array([success_by_task(episodes) for episodes in begun]),
        np.array([success_by_task(episodes) for episodes in ended]),
        float(np.mean([len(episode.turns) for episodes in ended for episode in episodes])),
        tuple(curve(RunFolder(asked.path), asked.unit) for asked in runs),
        float(np.mean([len(metrics) for metrics in lines])),
        sum(episode.failed for episodes in ended for episode in episodes),
        lines,
    )


def curve(folder: RunFolder, unit: Unit) -> tuple[Figures, Figures]:
    """What was spent at a run's evaluations, and success of the evaluated tasks then, evaluations x tasks."""
    lines = list(folder.read_metrics())
    at_step = {0: 0, **dict(zip((line["step"] for line in lines), spent(lines, unit), strict=True))}
    steps = folder.evaluated_steps("sampled")
    success = [success_by_task(folder.read_evaluation(step, "sampled") or []) for step in steps]
    return np.array([at_step[step] for step in steps], dtype=np.float64), np.array(success)


def success_by_task(episodes: Sequence[Episode]) -> list[float]:
    """Mean success of each task, in the order of their ids; failed episodes don't count."""
    found: dict[str, list[bool]] = {}
    for episode in episodes:
        if not episode.failed:
            found.setdefault(episode.task_id, []).append(bool(episode.success))
    return [float(np.mean(found[task])) for task in sorted(found)]


def interval(success_ST: Figures, statistic: Callable[[Figures], Any] = np.mean) -> tuple[Any, Any, Any]:
    """The statistic of seeds x tasks x anything, and its 95% interval: a bootstrap that draws seeds, and in each seed
    tasks, with replacement.
    """
    rng = np.random.default_rng(0)
    seeds, tasks = success_ST.shape[:2]
    drawn = []
    for _ in range(_DRAWS):
        s = rng.integers(seeds, size=(seeds, 1))
        drawn.append(statistic(success_ST[s, rng.integers(tasks, size=(seeds, tasks))]))
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return statistic(success_ST), low, high
