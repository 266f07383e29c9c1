"""Seats a policy at a world and plays episodes, one or many at a time.

An episode is a generator: it yields a `WorldSeat` whenever it is the agent's turn, wants a `Reply` sent back, and
returns the `Episode`. `play_many` drives many of them against one policy, which answers all waiting seats in one call;
episodes join and leave as they begin and end. Nothing here knows how a policy finds its words.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import gymnasium

from agentgym_envs.agents.formats import Bare
from agentgym_envs.core.feedback import faulting
from agentgym_envs.core.registry import text_env
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.episodes.conversation import Conversation, Message
from agentgym_envs.episodes.episode import Episode, Reply, Sample, StopReason
from agentgym_envs.episodes.recorder import EpisodeRecorder, EpisodeSpec, TurnContext

__all__ = [
    "Conversation",
    "EpisodeSpec",
    "Message",
    "Policy",
    "Reply",
    "Sample",
    "TurnContext",
    "WorldSeat",
    "play",
    "play_many",
    "seats",
]


@dataclass(frozen=True, slots=True)
class WorldSeat(TurnContext):
    """A seat from which the world itself can be reached."""

    env: gymnasium.Env[str, str]
    """The world in its wrappers. Experts read its state; other policies have no business there."""


class Policy(Protocol):
    """Whoever plays, answering all that wait in one call."""

    @property
    def name(self) -> str:
        """What reports call it; a plain attribute will do."""
        ...

    def reply(self, seats: Sequence[WorldSeat]) -> Sequence[Reply | EnvFault]:
        """One reply per seat, in the order of the seats. A seat missing from one call to the next has left."""
        ...


def play(
    env: gymnasium.Env[str, str],
    policy: Policy,
    job: EpisodeSpec | None = None,
    *,
    horizon: int | None = None,
    retries: int = 1,
) -> Episode:
    """Play one episode. See `play_many`."""
    return next(play_many([env], policy, [job or EpisodeSpec()], horizon=horizon, retries=retries))


def play_many(
    envs: Sequence[gymnasium.Env[str, str]],
    policy: Policy,
    jobs: Iterable[EpisodeSpec],
    *,
    horizon: int | None = None,
    retries: int = 1,
) -> Iterator[Episode]:
    """Play `jobs` on as many worlds at a time as there are `envs`, and yield episodes as they end.

    Args:
        envs: Worlds, each in a `ReplyWrapper` or else put in `Bare`. They stay open.
        policy: Answers all live seats in one call.
        jobs: Taken one by one as worlds become free.
        horizon: The most actions of an episode, in each trial for agents that begin again; None leaves it to the
            world's own limit.
        retries: How often a task is begun again after an `EnvFault`, or any other exception of the environment,
            before the episode counts as failed.
    """
    waiting = iter(jobs)
    live: dict[int, tuple[Generator[WorldSeat, Reply | EnvFault, Episode], WorldSeat]] = {}
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
    env: gymnasium.Env[str, str], job: EpisodeSpec, policy: str, horizon: int | None, retries: int
) -> Generator[WorldSeat, Reply | EnvFault, Episode]:
    world = text_env(env)
    named = world.tasks[job.task_id] if job.task_id is not None else None
    for attempts_left in range(retries, -1, -1):
        turns = env.get_wrapper_attr("turns_told")(horizon)
        attempt, error = EpisodeRecorder(job, horizon, env.get_wrapper_attr("agent"), turns=turns), None
        try:
            stop = yield from seats(env, job, attempt)
        except EnvFault as fault:
            if attempts_left:
                continue
            stop, error = "failed", f"{type(fault).__name__}: {fault}"
        task = named or world.task
        return attempt.episode(task, policy, stop, error)
    raise ValueError(f"The number of retries is at least 0, not {retries}.")


def seats(
    env: gymnasium.Env[str, str], job: EpisodeSpec, attempt: EpisodeRecorder
) -> Generator[WorldSeat, Reply | EnvFault, StopReason]:
    """Each seat of one attempt, for a reply or the fault that keeps it from being given, and at last why it ended.

    Args:
        env: The world in its `ReplyWrapper`.
        job: What is played.
        attempt: Records it, not begun yet; whoever drives this makes the `Episode` of it.

    Raises:
        EnvFault: when the world broke, in whatever way, or that fault was sent.
    """
    name = env.spec.id if env.spec else type(text_env(env)).__name__
    with attempt.clock("world"), faulting(name):
        observation, info = env.reset(seed=job.seed, options={"task": job.task_id, "split": job.split})
        attempt.begin(observation, info, env.get_wrapper_attr("instructions"), env.get_wrapper_attr("tools"))
    while True:
        seat = attempt.seat
        with attempt.clock("policy"):
            reply = yield WorldSeat(**{f.name: getattr(seat, f.name) for f in fields(seat)}, env=env)
        if isinstance(reply, EnvFault):
            raise reply
        if reply.finish == "length":
            return attempt.cut(reply)
        if seat.kind != "act":
            if attempt.noted(reply):
                with attempt.clock("world"), faulting(name):
                    observation, info = env.reset(seed=job.seed, options={"task": attempt.task_id})
                    attempt.begin_again(observation, info)
            continue
        with attempt.clock("world"), faulting(name):
            observation, reward, terminated, truncated, info = env.step(reply.text)
            stop = attempt.played(reply, observation, float(reward), terminated, truncated, info)
        if stop is not None:
            return stop
