"""Studies of short training runs (`algorithms.py`, `length_bias.py`, `scaling_inter.py`, `sft_then_rl.py`).

A run has a configuration and a budget of environment steps, tokens or updates; it ends with the first update that
reaches the budget, and then plays held-out tasks. All runs of a seed begin with the same model. Runs whose held-out
episodes are recorded aren't repeated; an interrupted run resumes from its last checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from agentgym_trainer.config import BaseConfig, Evaluation, RLConfig, SFTConfig, WarmStart
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.recipes import RECIPES
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.stopping import Stopping
from harness import run_parallel
from rich.console import Console

Unit = Literal["env_steps", "tokens", "updates"]
"""Unit of a budget: turns played in training; all tokens of the episodes played in training, trained on or not;
or updates."""
PLAYED = "played.jsonl"
"""File in a run folder with the held-out episodes; it exists if and only if the run is finished."""
EPISODES_64: dict[str, Any] = {"tasks_per_step": 8, "group_size": 8, "epochs": 1, "minibatches": 4}
"""Settings of updates with 64 episodes and four optimizer steps."""
_MAX_UPDATES = 10**6


@dataclass(frozen=True, slots=True)
class Run:
    """A training run."""

    method: str
    seed: int
    config: RLConfig
    budget: int
    path: Path
    samples: int = 2
    """Episodes of each held-out task at the end."""
    tasks: int = 0
    """Number of held-out tasks; 0 means all."""
    unit: Unit = "env_steps"
    split: Literal["train", "dev", "test"] = "test"
    """Split of the played tasks: dev if the results choose settings."""


def quickstart() -> RLConfig:
    """Return the configuration of the recipe `quickstart`."""
    config = RECIPES["quickstart"].config
    assert isinstance(config, RLConfig)
    return config


def miniature(config: RLConfig) -> RLConfig:
    """Return a tiny version, which only shows that everything works."""
    return replace(
        config,
        tasks_per_step=2,
        group_size=4,
        minibatches=2,
        generation=replace(config.generation, max_tokens=8),
        warm_start=replace(config.warm_start, episodes=64, epochs=1),
        evaluation=replace(config.evaluation, tasks=6),
    )


def spent(lines: Iterable[dict[str, Any]], unit: Unit) -> list[int]:
    """Return the budget used after each update, from the lines of the metrics."""
    if unit == "env_steps":
        return [line["env_steps"] for line in lines]
    if unit == "updates":
        return [line["step"] for line in lines]
    return list(accumulate(line["tokens"]["total"] for line in lines))


# Running.


def make_start(run: Run, path: Path) -> Path:
    """Return the model that a seed's runs begin with; create it and play the held-out tasks if that isn't done yet."""
    folder, config = RunFolder(path), run.config
    if not folder.start.exists():
        no_evaluation = Evaluation(tasks=1, test=False, samples=1, ks=(1,))
        horizon = FixedHorizon(config.horizon.longest)
        one_step = replace(config, steps=1, tasks_per_step=1, group_size=2, minibatches=1, horizon=horizon)
        _train(replace(run, config=replace(one_step, evaluation=no_evaluation), path=path))
    play_held_out(folder.start, run, path / PLAYED)
    return folder.start


def finish_run(run: Run, start: Path) -> str:
    """Train to the budget and play the held-out tasks, if that isn't done yet; return the name of the run."""
    if not (run.path / PLAYED).exists():
        config = replace(run.config, model=str(start), warm_start=WarmStart(episodes=0), steps=_MAX_UPDATES)
        _train(replace(run, config=config))
        play_held_out(latest_checkpoint(run.path), run, run.path / PLAYED)
    return f"{run.method}, seed {run.seed}"


def latest_checkpoint(run: Path) -> Path | None:
    """Return the last intact checkpoint of a run folder."""
    from agentgym_trainer.run.checkpoint import Checkpoints

    return Checkpoints(RunFolder(run).checkpoints, keep=1, say=print).latest()


def _train(run: Run) -> None:
    from agentgym_trainer.trainers.rl import train

    folder = open_run(run.config, run.path)
    with folder.path.joinpath("log.txt").open("a") as log:
        # Read from the file: a resumed run removes the metrics of updates that it repeats.
        stopping = _StopAtBudget(lambda: max(spent(folder.read_metrics(), run.unit), default=0) >= run.budget)
        train(run.config, folder, RunConsole(Console(file=log, width=160)), stopping)


class _StopAtBudget(Stopping):
    """Stops a run after the update that reaches its budget."""

    def __init__(self, is_spent: Callable[[], bool]) -> None:
        super().__init__()
        self._is_spent = is_spent

    def __call__(self) -> bool:
        return super().__call__() or self._is_spent()


def open_run(config: BaseConfig, path: Path) -> RunFolder:
    """Create a run folder, or open it to resume the run.

    Raises:
        SystemExit: If its run has other settings.
    """
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    if not (path / "run.json").exists():
        return RunFolder.create(path, config, "benchmark")
    folder, before, _ = RunFolder.open(path)
    if before != config:
        raise SystemExit(f"{path} has a run with other settings; choose another --out, or remove it.")
    return folder


def play_held_out(model: Path | None, run: Run, out: Path) -> None:
    """Play the held-out tasks at the training temperature, unless their episodes are recorded."""
    if out.exists():
        return
    from agentgym_eval.runs.environments import spread
    from agentgym_trainer.policies import hf
    from agentgym_trainer.rollout.environments import episode_specs, open_environments
    from agentgym_trainer.rollout.runner import RolloutRequest, RolloutRunner

    config = run.config
    generation, horizon, seed = config.generation, config.horizon.longest, config.seed
    policy = hf(str(model), temperature=generation.temperature, seed=seed, max_tokens=generation.max_tokens)
    with open_environments(config) as environments, RolloutRunner(policy.engine) as rollouts:
        requests: list[RolloutRequest] = []
        for environment in environments:
            held_out = environment.tasks.split(run.split)
            tasks = spread(held_out, run.tasks or len(held_out))
            requests.append(RolloutRequest(environment, episode_specs(tasks, samples=run.samples, seed=seed), horizon))
        lines = [episode.to_json() for episode in rollouts.play(requests, policy)]
    unfinished = out.with_suffix(".unfinished")
    unfinished.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    unfinished.rename(out)


def finish_sft(config: SFTConfig, path: Path) -> Path:
    """Return the model of an SFT run; train it if that isn't done yet."""
    from agentgym_trainer.trainers.sft import train

    folder = open_run(config, path)
    if not folder.model.exists():
        with path.joinpath("log.txt").open("a") as log:
            train(config, folder, RunConsole(Console(file=log, width=160)), Stopping())
    return folder.model


def sft_tokens(folder: RunFolder) -> int:
    """Return the number of tokens in the epochs of an SFT run."""
    from agentgym_trainer.models.load import load_chat
    from agentgym_trainer.tokens.trajectory import ContextLimit, Trimming
    from agentgym_trainer.trainers.sft import encode_examples

    _, config, _ = RunFolder.open(folder.path)
    assert isinstance(config, SFTConfig)
    trimming = Trimming(ContextLimit(config.generation.max_context))
    examples = encode_examples(load_chat(str(folder.model)), folder.read_data(), trimming)
    return config.epochs * sum(len(example.ids) for example in examples)


def make_starts(runs: Sequence[Run], starts: Path, processes: int) -> dict[int, Path]:
    """Create the initial models, one per seed; return them by seed."""
    first = {run.seed: run for run in reversed(runs)}
    made = run_parallel([partial(make_start, run, starts / f"seed-{seed}") for seed, run in first.items()], processes)
    return dict(zip(first, made, strict=True))


def run_all(runs: Sequence[Run], starts: Path, processes: int) -> None:
    """Create the initial models, then finish all runs."""
    made = make_starts(runs, starts, processes)
    run_parallel([partial(finish_run, run, made[run.seed]) for run in runs], processes)
