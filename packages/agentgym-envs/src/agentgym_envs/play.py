"""Seats a policy at a world and plays episodes, one or many at a time.

An episode is a generator: it yields a `Seat` whenever it is the agent's turn, wants a `Reply` sent back, and returns
the `Episode`. `play_many` drives many of them against one policy, which answers all waiting seats in one call;
episodes join and leave as they begin and end. Nothing here knows how a policy finds its words.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import gymnasium
import numpy as np

from agentgym_envs.episode import Episode, Reply, Sample, StopReason, Turn
from agentgym_envs.registry import text_env
from agentgym_envs.tasks import Split
from agentgym_envs.text_env import EnvFault
from agentgym_envs.wrappers import Bare

__all__ = ["Conversation", "Job", "Message", "Policy", "Reply", "Sample", "Seat", "play", "play_many"]


@dataclass(frozen=True, slots=True)
class Message:
    """One thing said."""

    role: Literal["system", "user", "assistant"]
    content: str


Conversation = tuple[Message, ...]
"""Instructions (where there are any) as `system`, observations as `user`, replies as `assistant`, in order; the last is
an observation."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A place at a world where it is the agent's turn."""

    key: int
    """The same over all turns of one attempt, and of no other."""
    env: gymnasium.Env[str, str]
    """The world in its wrappers. Experts read its state; other policies have no business there."""
    conversation: Conversation
    info: dict[str, Any]
    """Of the last `reset` or `step`."""
    rng: np.random.Generator
    """Seeded from the job; the same over all turns of the attempt."""


class Policy(Protocol):
    """Whoever plays."""

    @property
    def name(self) -> str:
        """What reports call it; a plain attribute will do."""
        ...

    def reply(self, seats: Sequence[Seat]) -> Sequence[Reply | EnvFault]:
        """One reply per seat, in the order of the seats. A seat missing from one call to the next has left."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """An episode to be played."""

    task_id: str | None = None
    """None draws a task from `split` with the env's own generator."""
    sample: int = 0
    """Number of the attempt at this task."""
    seed: int | None = None
    """Seeds the env's generator and, with task and sample, the seat's."""
    split: Split = "train"


_keys = itertools.count()


@dataclass(slots=True)
class _Record:
    """What an attempt has so far."""

    turns: list[Turn] = field(default_factory=list[Turn])
    observation: str = ""
    info: dict[str, Any] = field(default_factory=dict[str, Any])
    seconds: dict[str, float] = field(default_factory=lambda: {"world": 0.0, "policy": 0.0})


def play(
    env: gymnasium.Env[str, str],
    policy: Policy,
    job: Job | None = None,
    *,
    horizon: int | None = None,
    retries: int = 1,
) -> Episode:
    """Play one episode. See `play_many`."""
    return next(play_many([env], policy, [job or Job()], horizon=horizon, retries=retries))


def play_many(
    envs: Sequence[gymnasium.Env[str, str]],
    policy: Policy,
    jobs: Iterable[Job],
    *,
    horizon: int | None = None,
    retries: int = 1,
) -> Iterator[Episode]:
    """Play `jobs` on as many worlds at a time as there are `envs`, and yield episodes as they end.

    Args:
        envs: Worlds, each in a `ReplyWrapper` or else put in `Bare`. They stay open.
        policy: Answers all live seats in one call.
        jobs: Taken one by one as worlds become free.
        horizon: The most turns of an episode; None leaves it to the world's own limit.
        retries: How often a task is begun again after an `EnvFault` before the episode counts as failed.
    """
    if horizon is not None and horizon < 1:
        raise ValueError(f"A horizon is at least 1 turn, not {horizon}.")
    waiting = iter(jobs)
    live: dict[int, tuple[Generator[Seat, Reply | EnvFault, Episode], Seat]] = {}
    worlds = [env if env.has_wrapper_attr("parse") else Bare(env) for env in envs]

    def begin(slot: int) -> Iterator[Episode]:
        for job in waiting:
            game = _episode(worlds[slot], job, policy.name, horizon, retries)
            try:
                live[slot] = (game, next(game))
                return
            except StopIteration as end:
                yield end.value

    for slot in range(len(worlds)):
        yield from begin(slot)
    while live:
        replies = policy.reply([seat for _, seat in live.values()])
        for slot, reply in zip(list(live), replies, strict=True):
            game, _ = live[slot]
            try:
                live[slot] = (game, game.send(reply))
            except StopIteration as end:
                del live[slot]
                yield end.value
                yield from begin(slot)


def _episode(
    env: gymnasium.Env[str, str], job: Job, policy: str, horizon: int | None, retries: int
) -> Generator[Seat, Reply | EnvFault, Episode]:
    for attempt in range(retries + 1):
        record = _Record()
        try:
            stop = yield from _attempt(env, job, horizon, record)
            return _finish(env, job, policy, record, stop)
        except EnvFault as fault:
            if attempt == retries:
                return _finish(env, job, policy, record, "failed", error=f"{type(fault).__name__}: {fault}")
    raise AssertionError("retries is at least 0")


def _attempt(
    env: gymnasium.Env[str, str], job: Job, horizon: int | None, record: _Record
) -> Generator[Seat, Reply | EnvFault, StopReason]:
    began = time.perf_counter()
    record.observation, record.info = env.reset(seed=job.seed, options={"task": job.task_id, "split": job.split})
    record.seconds["world"] += time.perf_counter() - began
    instructions = env.get_wrapper_attr("instructions")
    conversation: Conversation = (Message("system", instructions),) if instructions else ()
    conversation += (Message("user", record.observation),)
    rng = np.random.default_rng([job.seed or 0, job.sample, *record.info["task_id"].encode()])
    key = next(_keys)
    while True:
        began = time.perf_counter()
        reply = yield Seat(key, env, conversation, record.info, rng)
        record.seconds["policy"] += time.perf_counter() - began
        if isinstance(reply, EnvFault):
            raise reply
        stop = _turn(env, reply, record)
        if stop is None and horizon is not None and len(record.turns) >= horizon:
            stop = "truncated"
        if stop is not None:
            return stop
        conversation += (Message("assistant", reply.text), Message("user", record.observation))


def _turn(env: gymnasium.Env[str, str], reply: Reply, record: _Record) -> StopReason | None:
    """Play one reply and record it. A reply that the token budget cut is recorded and not played."""
    seen, state = record.observation, record.info["state_key"]
    if reply.finish == "length":
        record.turns.append(Turn(seen, reply, None, valid=False, reward=0.0, state_key=state))
        return "length"
    began = time.perf_counter()
    record.observation, reward, terminated, truncated, record.info = env.step(reply.text)
    record.seconds["world"] += time.perf_counter() - began
    info = record.info
    record.turns.append(Turn(seen, reply, info["action"], valid=info["valid"], reward=float(reward), state_key=state))
    return "terminated" if terminated else "truncated" if truncated else None


def _finish(
    env: gymnasium.Env[str, str], job: Job, policy: str, record: _Record, stop: StopReason, error: str | None = None
) -> Episode:
    world = text_env(env)
    task = world.tasks[job.task_id] if job.task_id is not None else world.task
    failed = stop == "failed"
    return Episode(
        env=task.env,
        task_id=task.id,
        split=task.split,
        category=task.category,
        difficulty=task.difficulty,
        policy=policy,
        sample=job.sample,
        instructions=env.get_wrapper_attr("instructions"),
        turns=tuple(record.turns),
        final_observation=record.observation,
        stop=stop,
        score=None if failed else float(record.info["score"]),
        success=None if failed else bool(record.info["success"]),
        error=error,
        seconds={name: round(spent, 6) for name, spent in record.seconds.items()},
    )
