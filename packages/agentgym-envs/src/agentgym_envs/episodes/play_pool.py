"""Plays episodes in the slots of an `EnvPool`: one coroutine per trajectory, and nobody waits for anybody else.

What is parsed, looked up and told is done by one local instance of the world; only bare actions travel to the slots.
Knows neither how a player finds its words nor where the worlds are.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable

from agentgym_envs.agents.formats import ReplyWrapper
from agentgym_envs.core.feedback import EnvFault, faulting
from agentgym_envs.core.registry import text_env
from agentgym_envs.core.text_env import Malformed
from agentgym_envs.episodes.episode import Episode, Reply, StopReason
from agentgym_envs.episodes.recorder import EpisodeRecorder, EpisodeSpec, TurnContext
from agentgym_envs.pool import Ask, EnvPool, Reset, Result, Step
from agentgym_envs.pool.calls import Call


class Player(ABC):
    """Whoever plays, asked by each trajectory at its own time. All of it runs in one event loop."""

    name: str
    """What reports call it."""

    @abstractmethod
    async def reply(self, seat: TurnContext) -> Reply:
        """What is said in this seat.

        Raises:
            EnvFault: when the attempt broke through nobody's doing; it is begun again, as for a fault of the world.
            Exception: any other ends all that is being played.
        """

    def leave(self, key: int) -> None:  # noqa: B027 - not every player keeps something
        """The attempt with this key has ended, maybe before its first turn; what was kept for it can go."""

    async def close(self) -> None:  # noqa: B027 - nor holds something
        """Free everything. May be called twice."""


async def play_slot(
    pool: EnvPool,
    slot: int,
    player: Player,
    job: EpisodeSpec,
    *,
    world: ReplyWrapper,
    horizon: int | None = None,
    retries: int = 1,
    deadline: float | None = None,
) -> Episode:
    """Play one episode in a slot. The slot is free afterwards, also after an error or when this is cancelled.

    Args:
        pool: Holds bare worlds, without a `ReplyWrapper`.
        slot: Number of the slot.
        player: Who is asked.
        job: Names its task: which slot's generator would draw one hangs on who is faster.
        world: A local instance of the world, with the same options, in its wrapper. It isn't played.
        horizon: The most actions of a trial; None leaves it to the world's own limit.
        retries: How often the task is begun again after an `EnvFault`, or any other exception of the environment,
            before the episode counts as failed.
        deadline: Seconds for each call of the world, after which it is given up for a fresh one; None takes the pool's.

    Raises:
        ValueError: for a job without a task.
        KeyError: for a task that doesn't exist.
        SlotBusy, IndexError, RuntimeError: see `EnvPool.step`.
        Exception: whatever else the player raises.
    """
    if job.task_id is None:
        raise ValueError("A job played in a pool names its task; choose one of the world's tasks.")
    task = text_env(world).tasks[job.task_id]
    for attempts_left in range(retries, -1, -1):
        attempt, error = EpisodeRecorder(job, horizon, world.agent, turns=world.turns_told(horizon)), None
        try:
            stop = await _attempt(pool, slot, player, job, attempt, world, deadline)
        except EnvFault as fault:
            if attempts_left:
                continue
            stop, error = "failed", f"{type(fault).__name__}: {fault}"
        finally:
            player.leave(attempt.key)
        return attempt.episode(task, player.name, stop, error)
    raise ValueError(f"The number of retries is at least 0, not {retries}.")


async def _attempt(
    pool: EnvPool,
    slot: int,
    player: Player,
    job: EpisodeSpec,
    attempt: EpisodeRecorder,
    world: ReplyWrapper,
    deadline: float | None,
) -> StopReason:
    start, name = Reset(job.task_id, job.split, job.seed), pool.specs[slot].id
    with attempt.clock("world"):
        began = await _outcome(pool, slot, start, deadline)
        instructions = await _outcome(pool, slot, Ask("instructions"), deadline)
    with faulting(name):
        attempt.begin(began.observation, began.info, world.told(instructions.value), world.tools)
    while True:
        seat = attempt.seat
        with attempt.clock("policy"):
            reply = await player.reply(seat)
        if reply.finish == "length":
            return attempt.cut(reply)
        if seat.kind != "act":
            if attempt.noted(reply):
                with attempt.clock("world"):
                    began = await _outcome(pool, slot, start, deadline)
                with faulting(name):
                    attempt.begin_again(began.observation, began.info)
            continue
        with faulting(name):
            parsed = world.parse(reply.text)
        with attempt.clock("world"):
            step = await _outcome(pool, slot, Step(parsed), deadline)
        with faulting(name):
            step.info["action"] = None if isinstance(parsed, Malformed) else parsed
            stop = attempt.played(reply, step.observation, step.reward, step.terminated, step.truncated, step.info)
        if stop is not None:
            return stop


async def _outcome(pool: EnvPool, slot: int, call: Call, deadline: float | None) -> Result:
    """What comes of a call to the world; when nobody waits for it any more, the slot is freed of it.

    Raises:
        EnvFault: whatever the world raised.
    """
    try:
        result = await pool.call(slot, call, deadline=deadline)
    except asyncio.CancelledError:
        pool.replace(slot)
        raise
    if result.error is not None:
        with faulting(pool.specs[slot].id):
            raise result.error
    return result


async def play_pool(
    pool: EnvPool,
    player: Player,
    jobs: Iterable[EpisodeSpec],
    *,
    world: ReplyWrapper,
    slots: Iterable[int] | None = None,
    horizon: int | None = None,
    retries: int = 1,
    deadline: float | None = None,
) -> AsyncGenerator[Episode]:
    """Play `jobs`, one coroutine per slot, and yield episodes as they end.

    When this is left early (`contextlib.aclosing` sees to it), cancelled, or ends with an error, the coroutines are
    cancelled first. Nothing but the episodes' order hangs on how many slots there are and how fast they are.

    Args:
        pool: See `play_slot`, as for the others.
        player: Who is asked by all.
        jobs: Taken one by one as slots become free.
        world: The local instance.
        slots: Which to play in; all of the pool when not given.
        horizon: The most actions of a trial.
        retries: How often a task is begun again.
        deadline: Seconds for each call of the world.

    Raises:
        Exception: as `play_slot`, from whichever coroutine.
    """
    waiting = iter(jobs)
    ended: asyncio.Queue[Episode | asyncio.Task[None]] = asyncio.Queue()

    async def occupy(slot: int) -> None:
        for job in waiting:
            episode = await play_slot(
                pool, slot, player, job, world=world, horizon=horizon, retries=retries, deadline=deadline
            )
            ended.put_nowait(episode)
            await asyncio.sleep(0)  # where neither world nor player ever wait, the others would not get a turn

    tasks = [asyncio.create_task(occupy(slot)) for slot in (range(len(pool)) if slots is None else slots)]
    for task in tasks:
        task.add_done_callback(ended.put_nowait)
    try:
        playing = len(tasks)
        while playing:
            item = await ended.get()
            if isinstance(item, Episode):
                yield item
            elif item.cancelled():
                # Passed on it would look like the end: the episodes that are missing would be missed by nobody.
                raise RuntimeError(f"{player.name} or the world cancelled an episode, and nobody had asked for that.")
            else:
                item.result()
                playing -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
