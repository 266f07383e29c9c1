"""Playing episodes: one asynchronous driver for environments of this process and for slots of a pool.

`play_slots` runs one coroutine per slot; `play` and `play_many` run the same driver synchronously, without an event
loop, for policies that don't wait. Nothing here depends on how a policy finds its replies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import gymnasium

from agentgym_envs.core.feedback import faulting
from agentgym_envs.core.registry import text_env
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.episodes.episode import Episode, Reply, StopReason
from agentgym_envs.episodes.expert_start import ExpertPrefix, ExpertStart
from agentgym_envs.episodes.policy import Policy, TurnContext
from agentgym_envs.episodes.recorder import EpisodeRecorder, EpisodeSpec
from agentgym_envs.episodes.slots import EnvSlot, LocalSlot
from agentgym_envs.util.screenshots import ScreenshotStore

T = TypeVar("T")


class OpenEpisode:
    """An episode in progress: call `begin`, then `submit` a reply to each `context` until it returns a stop reason.

    With an `expert_start`, submit the `expert_reply` where there is one.
    """

    def __init__(
        self,
        slot: EnvSlot,
        spec: EpisodeSpec,
        *,
        horizon: int | None = None,
        with_env: bool = False,
        expert_start: ExpertStart | None = None,
        pictures: ScreenshotStore | None = None,
    ) -> None:
        """Record nothing yet.

        Args:
            slot: Where the episode is played.
            spec: What is played.
            horizon: Maximum number of actions of a trial; None leaves it to the environment's own limit. An expert's
                actions come on top of it, but count towards the environment's own limit.
            with_env: Whether contexts carry the environment.
            expert_start: Lets the environment's expert play the first turns of each trial.
            pictures: Where the screenshots are stored that an agent with the habit `pictures` gets; None: nowhere.
        """
        env = slot.env
        turns = env.get_wrapper_attr("turn_limit")(horizon)
        agent = env.get_wrapper_attr("agent")
        self.recorder = EpisodeRecorder(spec, horizon, agent, env=slot.name, turns=turns, pictures=pictures)
        self._slot, self._spec, self._with_env = slot, spec, with_env
        self._horizon, self._expert_start, self._prefix = horizon, expert_start, ExpertPrefix()

    @property
    def context(self) -> TurnContext:
        """The context of the next reply."""
        return replace(self.recorder.context, env=self._slot.env if self._with_env else None, expert=self._slot.expert)

    async def begin(self) -> None:
        """Reset the environment.

        Raises:
            EnvFault: if the environment raised anything, or its expert did not reach the goal.
            ValueError: as `ExpertStart.prefix`.
        """
        if self._expert_start is not None:
            with self.recorder.clock("world"):
                self._prefix = await self._expert_start.prefix(self._slot, self._spec)
            horizon = None if self._horizon is None else self._horizon + len(self._prefix.replies)
            self.recorder.limit(horizon, self._slot.env.get_wrapper_attr("turn_limit")(horizon))
        with self.recorder.clock("world"):
            start = await self._slot.reset(self._spec, self._spec.task_id)
        with faulting(self._slot.name):
            tools = self._slot.env.get_wrapper_attr("tools")
            self.recorder.begin(start.observation, start.info, start.instructions, tools)

    async def expert_reply(self) -> Reply | None:
        """The expert's reply in a turn before the policy's first one in this trial; None where the policy replies.

        Raises:
            EnvFault: if the environment raised anything.
        """
        context, replies = self.recorder.context, self._prefix.replies
        about_last_trial = context.kind == "reflect" and not context.acts
        if context.acts >= len(replies) or about_last_trial:
            return None
        if context.kind == "act":
            return replies[context.acts]
        with self.recorder.clock("world"):
            return replace(await self._slot.expert(context.kind, context.steps), expert=True)

    async def submit(self, reply: Reply) -> StopReason | None:
        """Record a reply and take the action in it; why the episode ended, or None while it goes on.

        Raises:
            EnvFault: if the environment raised anything, or an expert's actions led to another state than before.
        """
        recorder, slot = self.recorder, self._slot
        if reply.finish == "length":
            return recorder.record_cut_reply(reply)
        if recorder.context.kind != "act":
            if recorder.record_other(reply):
                with recorder.clock("world"):
                    start = await slot.reset(self._spec, recorder.task_id)
                with faulting(slot.name):
                    recorder.begin_trial(start.observation, start.info)
            return None
        with recorder.clock("world"):
            transition = await slot.step(reply.text)
        acts, led = recorder.context.acts + 1, len(self._prefix.replies)
        with faulting(slot.name):
            stop = recorder.record_step(reply, *transition)
        if acts == led and (stop or transition.info["state_key"] != self._prefix.state_key):
            raise EnvFault(
                f"The {led} actions of the expert in {recorder.task_id} led to another state than before, so "
                f"{slot.name} isn't deterministic."
            )
        return stop


async def play_episode(
    slot: EnvSlot,
    policy: Policy,
    spec: EpisodeSpec,
    *,
    horizon: int | None = None,
    retries: int = 1,
    expert_start: ExpertStart | None = None,
    pictures: ScreenshotStore | None = None,
) -> Episode:
    """Play one episode.

    Args:
        slot: Where it is played.
        policy: Replies in each turn.
        spec: What is played.
        horizon: Maximum number of actions of a trial; None leaves it to the environment's own limit.
        retries: How often the task is begun again after an `EnvFault`, or any other exception of the environment,
            before the episode counts as failed.
        expert_start: Lets the environment's expert play the first turns; see `OpenEpisode`.
        pictures: Where screenshots are stored; see `OpenEpisode`.

    Raises:
        KeyError: for a task that doesn't exist.
        ValueError: for a negative number of retries, a horizon below 1, or a slot or an expert that needs a task id.
        EnvFault: if the environment can't be started and the spec names no task, so that none has failed.
        Exception: whatever the policy raises other than `EnvFault`.
    """
    if retries < 0:
        raise ValueError(f"The number of retries is at least 0, not {retries}.")
    task = slot.task(spec)
    while True:
        settings: dict[str, Any] = {"horizon": horizon, "expert_start": expert_start, "pictures": pictures}
        episode = OpenEpisode(slot, spec, with_env=policy.needs_env, **settings)
        recorder, stop, error = episode.recorder, None, None
        try:
            await episode.begin()
            while stop is None:
                recorder.limit_context(policy.count_tokens)
                reply = await episode.expert_reply()
                if reply is None:
                    with recorder.clock("policy"):
                        reply = await policy.reply(episode.context)
                stop = await episode.submit(reply)
        except EnvFault as fault:
            if retries:
                retries -= 1
                continue
            if task is None and not recorder.begun:
                raise
            stop, error = "failed", f"{type(fault).__name__}: {fault}"
        finally:
            policy.forget(recorder.key)
        return recorder.episode(task or text_env(slot.env).tasks[recorder.task_id], policy.name, stop, error)


async def play_slots(
    slots: Sequence[EnvSlot],
    policy: Policy,
    specs: Iterable[EpisodeSpec],
    *,
    horizon: int | None = None,
    retries: int = 1,
    expert_start: ExpertStart | None = None,
    pictures: ScreenshotStore | None = None,
) -> AsyncGenerator[Episode]:
    """Play `specs`, one coroutine per slot, and yield episodes as they end.

    When the generator is closed early (use `contextlib.aclosing`), cancelled, or ends with an error, the coroutines are
    cancelled first. Only the order of the episodes depends on the number and speed of the slots.

    Args:
        slots: Where the episodes are played.
        policy: Replies in all of them.
        specs: Taken one by one as slots become free.
        horizon: See `play_episode`.
        retries: See `play_episode`.
        expert_start: See `play_episode`.
        pictures: See `play_episode`.

    Raises:
        Exception: as `play_episode`, from any of the coroutines.
    """
    settings: dict[str, Any] = {"horizon": horizon, "retries": retries, "expert_start": expert_start}
    settings |= {"pictures": pictures}
    players = [partial(_play_in, slot, policy, settings) for slot in slots]
    async with aclosing(play_each(players, specs, policy.name)) as episodes:
        async for episode in episodes:
            yield episode


def _play_in(
    slot: EnvSlot, policy: Policy, settings: dict[str, Any], spec: EpisodeSpec
) -> Coroutine[Any, Any, Episode]:
    return play_episode(slot, policy, spec, **settings)


async def play_each(
    players: Sequence[Callable[[EpisodeSpec], Awaitable[Episode]]], specs: Iterable[EpisodeSpec], name: str
) -> AsyncGenerator[Episode]:
    """Play `specs`, one coroutine per player, and yield episodes as they end. It ends as `play_slots` does.

    Args:
        players: Each plays one episode at a time.
        specs: Taken one by one as players become free.
        name: What plays, for error messages.

    Raises:
        Exception: whatever a player raises.
    """
    waiting = iter(specs)
    ended: asyncio.Queue[Episode | asyncio.Task[None]] = asyncio.Queue()

    async def work(player: Callable[[EpisodeSpec], Awaitable[Episode]]) -> None:
        for spec in waiting:
            ended.put_nowait(await player(spec))
            await asyncio.sleep(0)  # lets the other players run where none of them ever waits

    tasks = [asyncio.create_task(work(player)) for player in players]
    for task in tasks:
        task.add_done_callback(ended.put_nowait)
    try:
        running = len(tasks)
        while running:
            item = await ended.get()
            if isinstance(item, Episode):
                yield item
            elif item.cancelled():
                # Re-raised as CancelledError it would look like the regular end, with episodes missing.
                raise RuntimeError(f"{name} or the environment cancelled an episode without being asked to.")
            else:
                item.result()
                running -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def play(
    env: gymnasium.Env[str, str],
    policy: Policy,
    spec: EpisodeSpec | None = None,
    *,
    horizon: int | None = None,
    retries: int = 1,
) -> Episode:
    """Play one episode synchronously. See `play_many`."""
    return next(play_many(env, policy, [spec or EpisodeSpec()], horizon=horizon, retries=retries))


def play_many(
    env: gymnasium.Env[str, str],
    policy: Policy,
    specs: Iterable[EpisodeSpec],
    *,
    horizon: int | None = None,
    retries: int = 1,
    expert_start: ExpertStart | None = None,
    pictures: ScreenshotStore | None = None,
) -> Iterator[Episode]:
    """Play `specs` one after the other, synchronously, on the caller's thread.

    Args:
        env: In a `ReplyWrapper`; without one it is wrapped in `Bare`. It stays open.
        policy: A policy whose `reply` doesn't wait. For others, such as models behind an endpoint, use `play_pool` or
            `play_slots`.
        specs: What is played.
        horizon: See `play_episode`.
        retries: See `play_episode`.
        expert_start: See `play_episode`.
        pictures: See `play_episode`.

    Raises:
        RuntimeError: if the policy waits.
        Exception: as `play_episode`.
    """
    slot = LocalSlot(env)
    settings: dict[str, Any] = {"horizon": horizon, "retries": retries, "expert_start": expert_start}
    for spec in specs:
        yield run_without_loop(play_episode(slot, policy, spec, **settings, pictures=pictures))


def run_without_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, without an event loop: environments may start loops of their own.

    Raises:
        RuntimeError: if it waits.
        Exception: whatever the coroutine raises.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError(
        "This policy waits for something in `reply`, so it can't be run synchronously: use play_pool or play_slots in "
        "an event loop."
    )
