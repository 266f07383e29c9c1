"""Runs of the study: train, play the test tasks, and keep a compact record of each.

A run's folder is removed once its record is written, and an interrupted run resumes from its last checkpoint or begins
again, so the file of records is all that has to survive.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import multiprocessing
import shutil
from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_envs import Episode, read_episodes, text_env
from agentgym_envs.core.registry import make
from agentgym_trainer.config import RLConfig, WarmStart
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.stopping import Stopping
from outcomes import commits
from rich.console import Console
from training_runs import PLAYED, Run, make_start, open_run, play_held_out

from horizon.corridor import stratum
from horizon.design import BLOCKS, CORRIDOR, ENVIRONMENTS, TEXTCRAFT_OPTIONS, Cell, batches, strata_of

NAMES = tuple(dict.fromkeys(block.name for block in BLOCKS))
Record = dict[str, Any]
Length = Callable[[Episode], int]
"""Maps an episode to the expert's turns in its task."""


def run_study(
    file: Path,
    folder: Path,
    *,
    processes: int,
    environments: Mapping[str, RLConfig] = ENVIRONMENTS,
    blocks: Container[str] = NAMES,
    most: int | None = None,
) -> None:
    """Finish the runs that have no record yet, and add each record to the file as soon as the run is finished.
    Another process may add records of other blocks at the same time.

    Args:
        file: Compressed JSON file of the records.
        folder: Folder for runs in progress and initial models.
        processes: Number of runs at a time; with 1, those with the corridor's precision share this process.
        environments: The settings that all runs of an environment share, by name.
        blocks: Names of the blocks whose runs to finish.
        most: Stop after this many runs; None: after all.
    """
    records = read_records(file)
    spawn = multiprocessing.get_context("spawn")
    for cells in batches(records, blocks):
        known = {key_of(record) for record in records}
        missing = [cell for cell in cells if cell.key not in known][:most]
        if not missing:
            continue
        start = start_of(missing[0], folder)
        work = partial(finish, start=start, folder=folder, environments=environments)
        # accelerate can't change the precision within a process.
        in_this_process = processes == 1 and environments[missing[0].environment].precision == CORRIDOR.precision
        with nullcontext() if in_this_process else ProcessPoolExecutor(processes, mp_context=spawn) as pool:
            _call(pool, partial(warm_started, missing[0], start, environments))
            for cell, record in _finished(pool, work, missing):
                records[:] = add_record(file, record, folder / "records.lock")
                shutil.rmtree(path_of(cell, folder))
                done = f"{cell.block}, seed {cell.seed}, {cell.arm}, learning rate {cell.lr:g}"
                print(f"{len(records)} {done}: {record['seconds']:.0f} s", flush=True)
        if most is not None:
            most -= len(missing)
            if not most:
                return


def _call(pool: ProcessPoolExecutor | None, work: Callable[[], None]) -> None:
    """Call a function, in the pool if there is one."""
    if pool is None:
        work()
    else:
        pool.submit(work).result()


def _finished(
    pool: ProcessPoolExecutor | None, work: Callable[[Cell], Record], cells: Sequence[Cell]
) -> Iterator[tuple[Cell, Record]]:
    """Yield the runs as they finish."""
    if pool is None:
        for cell in cells:
            yield cell, work(cell)
        return
    futures = {pool.submit(work, cell): cell for cell in cells}
    for future in as_completed(futures):
        yield futures[future], future.result()


def start_of(cell: Cell, folder: Path) -> Path:
    """Return the folder of the warm start that a seed's runs in this environment begin with."""
    return folder / "starts" / f"{cell.environment}-seed-{cell.seed}".replace(" ", "-")


def path_of(cell: Cell, folder: Path) -> Path:
    """Return the folder of a run."""
    name = "-".join(map(str, cell.key)).replace(" ", "-").replace(",", "")
    return folder / name


def warm_started(cell: Cell, path: Path, environments: Mapping[str, RLConfig]) -> None:
    """Create the warm start of a seed and play the test tasks with it, if that isn't done yet. A process that needs it
    for another block waits.
    """
    config = replace(environments[cell.environment], seed=cell.seed, turns_per_step=0)
    with _locked(path.with_suffix(".lock")):
        make_start(_run(cell, config, path), path)


def finish(cell: Cell, start: Path, folder: Path, environments: Mapping[str, RLConfig]) -> Record:
    """Train, play the test tasks, and return the record. What is done already isn't repeated."""
    from agentgym_trainer.trainers.rl import train

    model, path = RunFolder(start).start, path_of(cell, folder)
    config = replace(cell.config(environments), model=str(model), warm_start=WarmStart(episodes=0))
    run = open_run(config, path)
    if not run.model.exists():
        with path.joinpath("log.txt").open("a") as log:
            train(config, run, RunConsole(Console(file=log, width=160)), Stopping())
    play_held_out(run.model, _run(cell, config, path), path / PLAYED)
    return record_of(cell, run, start)


def _run(cell: Cell, config: RLConfig, path: Path) -> Run:
    tasks = config.evaluation.test_tasks
    return Run(cell.arm, cell.seed, config, config.steps, path, samples=cell.samples, tasks=tasks, unit="updates")


# Records.


def record_of(cell: Cell, run: RunFolder, start: Path) -> Record:
    """Return the record of a finished run. Success is a list with an entry for each stratum of tasks."""
    lines, strata = list(run.read_metrics()), strata_of(cell.environment)
    played = list(read_episodes(run.path / PLAYED))
    evaluated, length = run.evaluated_steps("sampled"), length_in(cell.environment)
    return {
        "block": cell.block,
        "regime": cell.regime,
        "arm": cell.arm,
        "seed": cell.seed,
        "lr": cell.lr,
        "start": digest(RunFolder(start).start),
        "before": success(list(read_episodes(start / PLAYED)), strata, length),
        "test": success(played, strata, length),
        "test_lengths": by_length(played, length),
        **({"test_tasks": by_task(played, length)} if cell.environment == "TextCraft" else {}),
        "curve": [
            {
                "step": step,
                "success": success(run.read_evaluation(step, "sampled") or [], strata, length),
                "greedy": success(run.read_evaluation(step, "greedy") or [], strata, length),
            }
            for step in evaluated
        ],
        "updates": {name: [value(line) for line in lines] for name, value in _PER_UPDATE.items()},
        "length_update": next((line["step"] for line in lines if _length_share(line) > 0.5), None),
        "env_steps": lines[-1]["env_steps"],
        "tokens": sum(line["tokens"]["total"] for line in lines),
        "trained": sum(line["tokens"]["trained"] for line in lines),
        "seconds": round(sum(sum(line["seconds"].get(phase, 0.0) for phase in _PHASES) for line in lines), 1),
        "stages": [[line["step"] - 1, line["horizon"]] for line in lines if line["stage"]["since"] == line["step"] - 1],
        "commit": commits([run.path]),
    }


_PHASES = ("load", "rollout", "logprobs", "update", "evaluation")


def _length_share(line: Record) -> float:
    """Return the share of an update's episodes that ended at the token budget."""
    return round(line["stops"].get("length", 0) / line["episodes"], 4)


def _metric(name: str) -> Callable[[Record], float | None]:
    """Return a function that reads a metric of an update: None where it has none, as without a group to learn from."""
    return lambda line: None if line.get(name) is None else round(line[name], 4)


_PER_UPDATE: dict[str, Callable[[Record], float | None]] = {
    **{name: _metric(name) for name in ("success", "turns", "entropy", "episodes", "trained", "skipped")},
    **{name: _metric(name) for name in ("approx_kl", "ref_kl", "clip_fraction", "grad_norm")},
    "advantage": _metric("advantage/mean_token"),
    "length": _length_share,
    "groups": lambda line: line["groups"]["all"],
    "groups_trained": lambda line: line["groups"]["ok"],
    "optimizer_steps": lambda line: line.get("optimizer_steps") or 0,
}
"""The metrics of each update in a record."""


def length_in(environment: str) -> Length:
    """Return a function from an episode to the expert's turns in its task."""
    if environment != "TextCraft":
        return lambda episode: int(episode.difficulty)
    turns = _textcraft_turns()
    return lambda episode: turns[str(episode.task_id)]


@cache
def _textcraft_turns() -> dict[str, int]:
    """Return the expert's turns in the dev and test tasks of TextCraft, whose difficulty is the crafting depth."""
    with closing(make("agentgym/TextCraft-v0", **TEXTCRAFT_OPTIONS)) as env:
        expert, tasks = text_env(env), text_env(env).tasks
        found: dict[str, int] = {}
        for task in (*tasks.dev, *tasks.test):
            env.reset(options={"task": task.id})
            found[task.id] = next(turn for turn in count(1) if any(env.step(expert.oracle())[2:4]))
    return found


def success(episodes: Sequence[Episode], strata: Mapping[str, range], length: Length) -> list[float]:
    """Return the mean success on the tasks of each stratum."""
    found: dict[str, list[bool]] = {name: [] for name in strata}
    for episode in episodes:
        if not episode.failed:
            found[stratum(length(episode), strata)].append(bool(episode.success))
    return [round(float(np.mean(values)), 4) for values in found.values()]


def by_length(episodes: Sequence[Episode], length: Length) -> dict[str, list[int]]:
    """Return how many episodes succeeded, and how many there are, by the length of their task."""
    found: dict[str, list[int]] = {}
    for episode in episodes:
        if not episode.failed:
            counts = found.setdefault(str(length(episode)), [0, 0])
            counts[0] += bool(episode.success)
            counts[1] += 1
    return dict(sorted(found.items(), key=lambda item: int(item[0])))


def by_task(episodes: Sequence[Episode], length: Length) -> dict[str, tuple[int, float]]:
    """Return the length of each task and the mean success; with few seeds, differences are also paired by task."""
    found: dict[tuple[str, int], list[bool]] = {}
    for episode in episodes:
        if not episode.failed:
            found.setdefault((str(episode.task_id), length(episode)), []).append(bool(episode.success))
    return {task: (turns, float(np.mean(values))) for (task, turns), values in sorted(found.items())}


def digest(model: Path) -> str:
    """Return the beginning of the SHA-256 of a model's weights: machines may round differently."""
    return hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()[:12]


def key_of(record: Record) -> tuple[str, str, str, int, float]:
    """Return the `key` of the run that the record is of."""
    return record["block"], record["regime"], record["arm"], record["seed"], record["lr"]


def read_records(file: Path) -> list[Record]:
    """Return the records; none if there is no file."""
    return json.loads(gzip.decompress(file.read_bytes())) if file.exists() else []


def add_record(file: Path, record: Record, lock: Path) -> list[Record]:
    """Add a record to the file, one process at a time, and return all that it has then."""
    with _locked(lock):
        records = [*read_records(file), record]
        write_records(file, records)
    return records


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Wait until no other process holds this lock, and hold it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def write_records(file: Path, records: Sequence[Record]) -> None:
    """Replace the compressed file, with a line per record. A process that is killed meanwhile leaves the old file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    lines = ",\n".join(json.dumps(record, allow_nan=False) for record in records)
    new.write_bytes(gzip.compress(f"[\n{lines}\n]\n".encode(), mtime=0))
    new.replace(file)
