"""Tests of the habit `turns_left`, which shows how many actions are left, and of `continued` for truncated episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import gymnasium
import pytest
from agentgym_envs import EnvPool, Episode, EpisodeSpec, Policy, Reply, TurnContext, WorldSpec, make, play, play_pool
from agentgym_envs.agents.agent import Agent
from agentgym_envs.episodes.conversation import Scaffold, continued, replay
from door_world import Door, registered_env
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recording_policy import RecordingPolicy, check_conversations

KNOCKER = RecordingPolicy(lambda _: "knock")


@pytest.fixture
def door() -> Iterator[gymnasium.Env[str, str]]:
    with registered_env(Door) as env:
        yield env


def turns_left(observations: Sequence[str]) -> list[int | None]:
    """Return the number of turns left that each observation states, or None."""
    numbers: list[int | None] = []
    for text in observations:
        _, separator, number = text.rpartition("\n\nTurns left: ")
        numbers.append(int(number.removesuffix(".")) if separator else None)
    return numbers


def play_door(
    env: gymnasium.Env[str, str], agent: str, policy: RecordingPolicy, knocks: int = 5, **options: Any
) -> Episode:
    return play(Agent.parse(agent).wrap(env), policy, EpisodeSpec(f"door/train/{knocks}"), **options)


def test_observations_end_with_the_turns_left(door: gymnasium.Env[str, str]) -> None:
    episode = play_door(door, "bare+turns_left", KNOCKER, horizon=3)
    assert (episode.stop, episode.agent) == ("truncated", "bare+turns_left")
    assert turns_left([turn.observation for turn in episode.turns]) == [3, 2, 1]
    assert turns_left([episode.final_observation]) == [0]
    plain = play_door(door, "bare", KNOCKER, horizon=3)
    assert turns_left([turn.observation for turn in plain.turns]) == [None] * 3
    for turn, other in zip(episode.turns, plain.turns, strict=True):
        assert turn.observation.startswith(other.observation + "\n\n")


def test_only_actions_count_and_a_new_trial_starts_over(door: gymnasium.Env[str, str]) -> None:
    policy = RecordingPolicy(lambda _: "knock")
    episode = play_door(door, "bare+plan:1+window:1+retry+turns_left", policy, horizon=2)
    check_conversations(episode, policy.seen)
    for trial in (0, 1):
        acts = [turn.observation for turn in episode.turns if turn.kind == "act" and turn.trial == trial]
        assert turns_left(acts) == [2, 1]
    # The reflection belongs to the second trial, but its observation ends the first one.
    assert [turns_left([turn.observation]) for turn in episode.turns if turn.kind == "reflect"] == [[0]]


def test_terminal_observation_has_no_turns_left(door: gymnasium.Env[str, str]) -> None:
    opener = RecordingPolicy(lambda context: "knock" if context.acts < 1 else "open")
    episode = play_door(door, "bare+turns_left", opener, knocks=1, horizon=5)
    assert episode.stop == "terminated"
    assert turns_left([episode.final_observation]) == [None]


def test_lower_of_horizon_and_environment_limit_counts() -> None:
    for limit, horizon, expected in ((4, None, 4), (4, 2, 2), (2, 9, 2)):
        with closing(make("agentgym/TextCraft-v0", max_episode_steps=limit)) as env:
            policy = RecordingPolicy(lambda _: "inventory")
            episode = play(Agent.parse("react+turns_left").wrap(env), policy, EpisodeSpec(), horizon=horizon)
            assert turns_left([turn.observation for turn in episode.turns])[0] == expected


def test_turns_left_without_a_limit_is_rejected() -> None:
    class Endless(Door):
        """Created without the registry, which would set a limit."""

    wrapped = Agent.parse("bare+turns_left").wrap(Endless())
    with pytest.raises(ValueError, match="neither a horizon nor a limit of the environment"):
        play(wrapped, KNOCKER, EpisodeSpec("door/train/1"))
    assert Agent.parse("bare").wrap(Endless()).turn_limit() is None


class ConstantPolicy(Policy):
    """Gives the same reply in every turn."""

    name = "constant"

    async def reply(self, context: TurnContext) -> Reply:
        return Reply("inventory")


def test_pool_shows_the_turns_left() -> None:
    async def play_all() -> list[Episode]:
        env = Agent.parse("bare+turns_left").wrap(make("agentgym/TextCraft-v0"))
        with closing(env), closing(EnvPool(WorldSpec("agentgym/TextCraft-v0", {}), 2, "inline")) as pool:
            specs = [EpisodeSpec("textcraft/test/oak_button", sample) for sample in range(2)]
            return [episode async for episode in play_pool(pool, ConstantPolicy(), specs, env=env, horizon=3)]

    for episode in asyncio.run(play_all()):
        assert turns_left([turn.observation for turn in episode.turns]) == [3, 2, 1]


@pytest.mark.parametrize(("name", "complaint"), [("react+turns_left:3", "takes no number; write turns_left, not")])
def test_turns_left_takes_no_number(name: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Agent.parse(name)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    habits=st.builds(Scaffold, plan=st.none() | st.integers(0, 2), window=st.integers(0, 2), reflect=st.integers(0, 2)),
    horizon=st.integers(1, 5),
)
def test_continued_matches_a_longer_episode(door: gymnasium.Env[str, str], habits: Scaffold, horizon: int) -> None:
    def play_turns(turns: int) -> Episode:
        return play_door(door, f"bare{habits}", RecordingPolicy(lambda _: "knock"), horizon=turns)

    short, long = play_turns(horizon), play_turns(horizon + 1)
    conversations = [conversation for conversation, _ in replay(long)]
    last = len(short.turns)
    assert continued(short) == (conversations[last - 1], conversations[last])


def test_episode_with_a_cut_off_reply_cannot_be_continued(door: gymnasium.Env[str, str]) -> None:
    policy = RecordingPolicy(lambda _: Reply("kno", "length"))
    with pytest.raises(ValueError, match="doesn't end with an action, and so can't be continued"):
        continued(play_door(door, "bare", policy))
