"""Tests of `play_slots`: every episode is played once, and its content doesn't depend on the number of slots."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import gymnasium
import pytest
from agentgym_envs import Episode, EpisodeSpec, LocalSlot, Policy, Reply, TurnContext, play, play_slots
from door_policies import FunctionPolicy, expert
from door_world import Door, registered_env


@pytest.mark.parametrize("slots", [1, 3, 20])
def test_slots_play_every_episode_once(slots: int) -> None:
    specs = [EpisodeSpec(f"door/train/{knocks}", sample=sample) for sample in range(3) for knocks in (5, 0, 3, 1, 4, 2)]
    policy = expert()
    with registered_env(Door) as env:
        episodes = play_in_slots(env, slots, policy, specs)
    assert Counter((episode.task_id, episode.sample) for episode in episodes) == Counter(
        (spec.task_id, spec.sample) for spec in specs
    )
    assert all(episode.success and len(episode.turns) == episode.difficulty + 1 for episode in episodes)
    assert len({context.key for context in policy.contexts}) == len(specs)


def play_in_slots(
    env: gymnasium.Env[str, str], slots: int, policy: Policy, specs: Sequence[EpisodeSpec]
) -> list[Episode]:
    envs = [env, *(gymnasium.make(env.spec) for _ in range(slots - 1))]  # pyright: ignore[reportArgumentType]

    async def play_all() -> list[Episode]:
        return [episode async for episode in play_slots([LocalSlot(env) for env in envs], policy, specs)]

    return asyncio.run(play_all())


def test_play_rejects_a_policy_that_awaits() -> None:
    class AwaitingPolicy(FunctionPolicy):
        async def reply(self, context: TurnContext) -> Reply:
            await asyncio.sleep(0)
            return await super().reply(context)

    with registered_env(Door) as door, pytest.raises(RuntimeError, match="play_pool or play_slots"):
        play(door, AwaitingPolicy(lambda context: "knock"), EpisodeSpec("door/train/1"))


def test_episodes_do_not_depend_on_the_number_of_slots() -> None:
    specs = [EpisodeSpec(f"door/train/{knocks}", sample, seed=7) for knocks in range(6) for sample in range(4)]

    def act_randomly(context: TurnContext) -> str:
        return "knock" if context.rng.random() < 0.7 else "open"

    def play_all(slots: int) -> dict[tuple[str, int], list[str]]:
        with registered_env(Door) as env:
            episodes = play_in_slots(env, slots, FunctionPolicy(act_randomly), specs)
            return {
                (episode.task_id, episode.sample): [turn.reply.text for turn in episode.turns] for episode in episodes
            }

    assert play_all(1) == play_all(5)
