"""Helpers for tests of the trainer: texts, random trajectories, a learner on the CPU, and small runs of `train`."""

from __future__ import annotations

import asyncio
import copy
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
from agentgym_trainer.algorithms.distillation import with_teacher
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


def make_learner(
    model: Any,
    *,
    critic: Literal["head", "separate"] | None = None,
    accelerator: Accelerator | None = None,
    **options: Any,
) -> Learner:
    """Return a learner of `model`. Options that aren't settings of the optimizer go to the learner or the actor."""
    settings = {"lr": 1e-2, "micro_tokens": 64} | {
        n: v for n, v in options.items() if n in {f.name for f in fields(Optimizer)}
    }
    rest = {name: value for name, value in options.items() if name not in settings}
    heads = {"head": lambda: ValueHead(model.config.hidden_size), "separate": lambda: separate_critic(model)}
    temperature = rest.pop("temperature", 1.0)
    reference = None
    if rest.pop("reference", False):
        reference = PolicyModel(copy.deepcopy(model).requires_grad_(False).eval(), temperature=temperature)
    actor = PolicyModel(model, temperature=temperature, critic=heads[critic]() if critic else None)
    return Learner(actor, accelerator or Accelerator(cpu=True), Optimizer(**settings), reference=reference, **rest)


def update_on(
    learner: Learner, trajectories: Sequence[Trajectory], algorithm: Algorithm | Imitation, **options: Any
) -> dict[str, float]:
    """Update on trajectories, with the advantages of a teacher if the learner has one, and return the metrics."""
    batch = make_batch(trajectories)
    token_batch = learner.compute_logprobs(batch, algorithm)
    advantages, from_teacher = algorithm.compute_advantages(token_batch, learner.total), dict[str, float]()
    if learner.teacher is not None:
        token_batch = token_batch.with_logprobs(teacher_logprobs_N=learner.teacher_logprobs(batch))
        advantages = with_teacher(advantages, token_batch, learner.total, reward_weight=1.0, teacher_weight=1.0)
        from_teacher = {"teacher/kl": advantages.metrics["teacher/kl"]}
    return learner.update(batch, token_batch, advantages, algorithm, **options) | from_teacher


def auxiliary_loss(
    learner: Learner, trajectories: Sequence[Trajectory], weight: float = 0.5, **options: Any
) -> LossTerm:
    """Return an auxiliary imitation loss on trajectories."""
    batch, algorithm = make_batch(trajectories), Imitation()
    token_batch = learner.compute_logprobs(batch, algorithm)
    advantages = algorithm.compute_advantages(token_batch, learner.total)
    return LossTerm(batch, token_batch, advantages, algorithm, weight=weight, name="sft/", **options)


def random_segment(pattern: Sequence[tuple[int, int]], rng: np.random.Generator, *, first_turn: int = 0) -> Segment:
    """Return a segment of random ids.

    Args:
        pattern: The number of prompt and of completion tokens of each turn.
    """
    ids, loss_mask, logprobs, turns = [], [], [], []
    for turn, (prompt, completion) in enumerate(pattern, first_turn):
        ids += rng.integers(3, VOCAB, prompt + completion).tolist()
        loss_mask += [False] * prompt + [True] * completion
        logprobs += [0.0] * prompt + (-rng.random(completion) * 8).tolist()
        turns += [-1] * prompt + [turn] * completion
    return Segment(tuple(ids), tuple(loss_mask), tuple(logprobs), tuple(turns))


def make_trajectories(seed: int, episodes: int = 6, *, groups: int = 2) -> list[Trajectory]:
    """Return trajectories of different lengths and rewards, the last one in two segments."""
    rng = np.random.default_rng(seed)
    trajectories: list[Trajectory] = []
    for e in range(episodes):
        turns = int(rng.integers(1, 4))
        pattern = [(int(rng.integers(1, 9)), int(rng.integers(1, 6))) for _ in range(turns)]
        segments = [random_segment(pattern, rng)]
        if e == episodes - 1:
            segments.append(random_segment([(5, 3)], rng, first_turn=turns))
            turns += 1
        trajectories.append(
            Trajectory(
                tuple(segments),
                rewards=tuple(rng.random(turns).tolist()),
                # Episodes of a group begin in the same state; few later states, so that they recur.
                states=(states := ("begin", *(f"state-{rng.integers(3)}" for _ in range(turns - 1)))),
                observations=tuple(("act", f"seen in {state}") for state in states),
                group=f"task-{e % groups}",
            )
        )
    return trajectories


def episode_with_samples(
    samples: Sequence[Sample | None], rewards: Sequence[float] | None = None, *, stop: Any = "terminated"
) -> Episode:
    """Return an episode whose replies have the given samples."""
    earned = rewards or [0.0] * len(samples)
    turns = tuple(
        Turn("seen", Reply("said", sample=sample), "said", valid=True, reward=reward, state_key="")
        for sample, reward in zip(samples, earned, strict=True)
    )
    failed = stop == "failed"
    return Episode(
        env="coin/Coin-v0", task_id="coin/train/1", split="train", category="coins", difficulty=1, policy="test",
        sample=0, instructions="", turns=turns, final_observation="", stop=stop,
        score=None if failed else sum(earned), success=None if failed else False, error="it broke" if failed else None,
    )  # fmt: skip


@dataclass(frozen=True)
class SignalPoint:
    """The point at which a process gets a signal: right after the nth call of a method."""

    owner: str
    """The class, as package.module:Class."""
    method: str
    call: int
    signal: int = signal.SIGKILL
    forever: bool = False
    """Whether calls of the method, a coroutine function, never return from then on."""


def coin_flags(out: Path, *more: str) -> list[str]:
    """Return the arguments of an RL run of about a second: a tiny model from scratch in the coin environment."""
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
    more = ("--warm-start.imitate-noise", *more)
    return ["textcraft-grpo", *flags, "--evaluation.ks", "1", "2", "--world.no-instructions", *more]


def sft_flags(out: Path, *more: str) -> list[str]:
    """Return the arguments of an SFT run of about a second: a tiny model from scratch imitates the coin expert."""
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
def limit_file_size(size: int) -> Generator[None]:
    """Limit files to `size` bytes, so that writes really fail, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def train_cli(arguments: Sequence[str], log: Path | None = None) -> int:
    """Run `train` in this process, and return its exit code; with `log`, stderr goes there."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(sys, "argv", ["train", *arguments])
        if log:
            patch.setattr(sys, "stderr", stack.enter_context(log.open("w", buffering=1)))
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
    raise AssertionError("train didn't exit")


class StopAfterCalls(Stopping):
    """A stop request that is reported from the nth call on."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times, self._asked = times, itertools.count(1)

    def __call__(self) -> bool:
        return next(self._asked) >= self._times


def train_process(arguments: Sequence[str], log: Path, *points: SignalPoint) -> None:
    """Run `train` as the main function of a process, which sends itself signals at the given points."""
    gc.freeze()
    for point in points:
        send_signals_at(point)
    sys.exit(train_cli(arguments, log))


def send_signals_at(point: SignalPoint) -> None:
    """Make this process send itself a signal at the given point."""
    owner, calls = resolve_name(point.owner), itertools.count(1)
    original = getattr(owner, point.method)

    def watched(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if (call := next(calls)) == point.call:
            os.kill(os.getpid(), point.signal)
        return _forever(result) if point.forever and call >= point.call else result

    setattr(owner, point.method, watched)


async def _forever(coroutine: Coroutine[Any, Any, Any]) -> None:
    coroutine.close()
    await asyncio.Event().wait()
