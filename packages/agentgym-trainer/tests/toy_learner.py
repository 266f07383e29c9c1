"""What the tests of the trainer share: small texts, trajectories by hand, and a learner on a CPU."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import resource
import signal
import sys
from collections.abc import Coroutine, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

import numpy as np
import pytest
from accelerate import Accelerator
from agentgym_envs import Episode, Reply, Sample, Turn
from agentgym_trainer.algorithms import Algorithm, Imitation
from agentgym_trainer.cli import main
from agentgym_trainer.config import Optimizer
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.learner.loss_term import LossTerm
from agentgym_trainer.models.policy import PolicyModel, ValueHead, separate_critic
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.trajectory import Segment, Trajectory
from coin_world import ENV

TEXTS = [
    "Flip 1 of 3. Say heads or tails.",
    "get 2 oak log",
    "craft 4 oak planks using 1 oak log",
    "heads",
    "tails",
] * 8
VOCAB = 320


def learner(
    model: Any,
    *,
    critic: Literal["head", "separate"] | None = None,
    accelerator: Accelerator | None = None,
    **knobs: Any,
) -> Learner:
    """A learner of `model`; what isn't a setting of the optimizer goes to the learner or the actor."""
    settings = {"lr": 1e-2, "micro_tokens": 64} | {
        n: v for n, v in knobs.items() if n in {f.name for f in fields(Optimizer)}
    }
    rest = {name: value for name, value in knobs.items() if name not in settings}
    heads = {"head": lambda: ValueHead(model.config.hidden_size), "separate": lambda: separate_critic(model)}
    actor = PolicyModel(model, temperature=rest.pop("temperature", 1.0), critic=heads[critic]() if critic else None)
    return Learner(actor, accelerator or Accelerator(cpu=True), Optimizer(**settings), **rest)


def teach(
    student: Learner, made: Sequence[Trajectory], algorithm: Algorithm | Imitation, **how: Any
) -> dict[str, float]:
    """Metrics of one update on these trajectories."""
    batch = make_batch(made)
    experience = student.compute_logprobs(batch, algorithm)
    return student.update(batch, experience, algorithm.compute_advantages(experience, student.total), algorithm, **how)


def beside(student: Learner, made: Sequence[Trajectory], weight: float = 0.5, **how: Any) -> LossTerm:
    """These trajectories as what is imitated beside acting."""
    batch, algorithm = make_batch(made), Imitation()
    experience = student.compute_logprobs(batch, algorithm)
    credit = algorithm.compute_advantages(experience, student.total)
    return LossTerm(batch, experience, credit, algorithm, weight=weight, name="sft/", **how)


def segment(pattern: Sequence[tuple[int, int]], rng: np.random.Generator, *, first_turn: int = 0) -> Segment:
    """Random ids: for each turn so many seen and so many said tokens."""
    ids, said, logprobs, turns = [], [], [], []
    for turn, (seen, new) in enumerate(pattern, first_turn):
        ids += rng.integers(3, VOCAB, seen + new).tolist()
        said += [False] * seen + [True] * new
        logprobs += [0.0] * seen + (-rng.random(new) * 8).tolist()
        turns += [-1] * seen + [turn] * new
    return Segment(tuple(ids), tuple(said), tuple(logprobs), tuple(turns))


def some_trajectories(seed: int, episodes: int = 6, *, groups: int = 2) -> list[Trajectory]:
    """Trajectories of ragged lengths, the last one in two segments, with rewards that differ."""
    rng = np.random.default_rng(seed)
    made: list[Trajectory] = []
    for e in range(episodes):
        turns = int(rng.integers(1, 4))
        pattern = [(int(rng.integers(1, 9)), int(rng.integers(1, 6))) for _ in range(turns)]
        segments = [segment(pattern, rng)]
        if e == episodes - 1:
            segments.append(segment([(5, 3)], rng, first_turn=turns))
            turns += 1
        made.append(
            Trajectory(
                tuple(segments),
                rewards=tuple(rng.random(turns).tolist()),
                # Every episode of a group begins in the same state; behind it, few states are met again and again.
                states=(states := ("begin", *(f"state-{rng.integers(3)}" for _ in range(turns - 1)))),
                observations=tuple(("act", f"seen in {state}") for state in states),
                group=f"task-{e % groups}",
            )
        )
    return made


def episode(
    samples: Sequence[Sample | None], rewards: Sequence[float] | None = None, *, stop: Any = "terminated"
) -> Episode:
    """An episode whose replies carry these samples."""
    paid = rewards or [0.0] * len(samples)
    turns = tuple(
        Turn("seen", Reply("said", sample=sample), "said", valid=True, reward=reward, state_key="")
        for sample, reward in zip(samples, paid, strict=True)
    )
    failed = stop == "failed"
    return Episode(
        env="coin/Coin-v0", task_id="coin/train/1", split="train", category="coins", difficulty=1, policy="test",
        sample=0, instructions="", turns=turns, final_observation="", stop=stop,
        score=None if failed else sum(paid), success=None if failed else False, error="it broke" if failed else None,
    )  # fmt: skip


@dataclass(frozen=True)
class Moment:
    """When a process is sent a signal: right after the nth call of a method."""

    owner: str
    """The class, as package.module:Class."""
    method: str
    call: int
    signal: int = signal.SIGKILL
    forever: bool = False
    """Whether calls of the method, which is a coroutine, never come to an end from then on."""


def coin_flags(out: Path, *more: str) -> list[str]:
    """The command line of a run of a second: a tiny model from scratch learns to guess coins."""
    settings = {
        "model": "scratch", "scratch.vocab": "280", "scratch.hidden": "32", "scratch.layers": "1",
        "scratch.heads": "2", "world.env": ENV, "world.agent": "bare",
        "algorithm.kl.weight": "0.01", "horizon.turns": "3",
        "generation.max-tokens": "6", "generation.max-context": "200", "optimizer.lr": "1e-3",
        "warm-start.episodes": "96", "warm-start.noise": "0.8", "warm-start.epochs": "3", "warm-start.batch": "8",
        "warm-start.lr": "1e-2", "evaluation.tasks": "4", "evaluation.samples": "2", "evaluation.every": "3",
        "steps": "6", "tasks-per-step": "4", "group-size": "4", "epochs": "2", "minibatches": "2", "save-every": "2",
        "precision": "no", "device": "cpu", "out": str(out),
    }  # fmt: skip
    flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return ["textcraft-grpo", *flags, "--evaluation.ks", "1", "2", "--world.no-instructions", *more]


def sft_flags(out: Path, *more: str) -> list[str]:
    """The command line of a run of a second: a tiny model from scratch imitates one who knows the coins."""
    settings = {
        "scratch.vocab": "280", "scratch.hidden": "32", "scratch.layers": "1", "scratch.heads": "2", "world.env": ENV,
        "horizon.turns": "3", "generation.max-tokens": "6", "generation.max-context": "200", "optimizer.lr": "1e-2",
        "optimizer.warmup": "0", "evaluation.tasks": "4", "evaluation.samples": "2", "evaluation.every": "9",
        "scratch.merges": "phrases", "optimizer.micro-tokens": "8192", "data.noise": "0", "data.keep": "success",
        "data.episodes": "64", "epochs": "3", "batch": "8", "save-every": "6", "out": str(out),
    }  # fmt: skip
    flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return ["sft-textcraft", *flags, "--world.options", "--evaluation.ks", "1", "2", *more]


@contextmanager
def files_up_to(size: int) -> Generator[None]:
    """A disk on which no file can grow beyond `size` bytes: a write that fails for real, as on a full one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def train_cli(arguments: Sequence[str], log: Path | None = None) -> int:
    """The exit code of `train` with these arguments; what it says on stderr goes to `log`."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(sys, "argv", ["train", *arguments])
        if log:
            patch.setattr(sys, "stderr", stack.enter_context(log.open("w", buffering=1)))
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
    raise AssertionError("train leaves with an exit code")


class AskedAfter(Stopping):
    """Asked to end after the step, from the nth time on that somebody wants to know."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times, self._asked = times, itertools.count(1)

    def __call__(self) -> bool:
        return next(self._asked) >= self._times


def train_process(arguments: Sequence[str], log: Path, *moments: Moment) -> None:
    """`train` as the whole of a process of its own, which sends itself signals at these moments."""
    gc.freeze()
    for moment in moments:
        befall(moment)
    sys.exit(train_cli(arguments, log))


def befall(moment: Moment) -> None:
    """Have this process send itself a signal at that moment."""
    owner, calls = resolve_name(moment.owner), itertools.count(1)
    original = getattr(owner, moment.method)

    def watched(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if (call := next(calls)) == moment.call:
            os.kill(os.getpid(), moment.signal)
        return _forever(result) if moment.forever and call >= moment.call else result

    setattr(owner, moment.method, watched)


async def _forever(coroutine: Coroutine[Any, Any, Any]) -> None:
    coroutine.close()
    await asyncio.Event().wait()
