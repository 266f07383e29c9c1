"""Slots play every episode once, and the same episodes whatever their number."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import gymnasium
import pytest
from agentgym_envs import Episode, EpisodeSpec, LocalSlot, Policy, Reply, TurnContext, play, play_slots
from door_policies import Player, expert
from door_world import Door, made


@pytest.mark.parametrize("slots", [1, 3, 20])
def test_many_slots_play_every_job_once(slots: int) -> None:
    jobs = [EpisodeSpec(f"door/train/{knocks}", sample=sample) for sample in range(3) for knocks in (5, 0, 3, 1, 4, 2)]
    policy = expert()
    with made(Door) as env:
        episodes = in_slots(env, slots, policy, jobs)
    assert Counter((e.task_id, e.sample) for e in episodes) == Counter((job.task_id, job.sample) for job in jobs)
    assert all(e.success and len(e.turns) == e.difficulty + 1 for e in episodes)
    assert len({context.key for context in policy.contexts}) == len(jobs)


def in_slots(env: gymnasium.Env[str, str], slots: int, policy: Policy, specs: Sequence[EpisodeSpec]) -> list[Episode]:
    envs = [env, *(gymnasium.make(env.spec) for _ in range(slots - 1))]  # pyright: ignore[reportArgumentType]

    async def played() -> list[Episode]:
        return [episode async for episode in play_slots([LocalSlot(env) for env in envs], policy, specs)]

    return asyncio.run(played())


def test_a_policy_that_waits_is_refused_synchronously() -> None:
    class Waits(Player):
        async def reply(self, context: TurnContext) -> Reply:
            await asyncio.sleep(0)
            return await super().reply(context)

    with made(Door) as door, pytest.raises(RuntimeError, match="play_pool or play_slots"):
        play(door, Waits(lambda context: "knock"), EpisodeSpec("door/train/1"))


def test_slots_play_what_one_slot_plays() -> None:
    jobs = [EpisodeSpec(f"door/train/{knocks}", sample, seed=7) for knocks in range(6) for sample in range(4)]

    def gamble(seat: TurnContext) -> str:
        return "knock" if seat.rng.random() < 0.7 else "open"

    def games(slots: int) -> dict[tuple[str, int], list[str]]:
        with made(Door) as env:
            episodes = in_slots(env, slots, Player(gamble), jobs)
            return {(e.task_id, e.sample): [turn.reply.text for turn in e.turns] for e in episodes}

    assert games(1) == games(5)
