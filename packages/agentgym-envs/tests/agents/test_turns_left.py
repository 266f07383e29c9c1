"""An agent that is told how many actions are left, wherever it is played; and how an episode would have gone on."""

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
from door_world import Door, made
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recording_policy import Talker, check_conversations

KNOCKS = Talker(lambda _: "knock")


@pytest.fixture
def door() -> Iterator[gymnasium.Env[str, str]]:
    with made(Door) as env:
        yield env


def told(observations: Sequence[str]) -> list[int | None]:
    """The number of turns left in each."""
    numbers: list[int | None] = []
    for text in observations:
        _, said, number = text.rpartition("\n\nTurns left: ")
        numbers.append(int(number.removesuffix(".")) if said else None)
    return numbers


def game(env: gymnasium.Env[str, str], agent: str, talker: Talker, knocks: int = 5, **how: Any) -> Episode:
    return play(Agent.parse(agent).wrap(env), talker, EpisodeSpec(f"door/train/{knocks}"), **how)


def test_every_observation_says_how_many_actions_are_left(door: gymnasium.Env[str, str]) -> None:
    episode = game(door, "bare+turns_left", KNOCKS, horizon=3)
    assert (episode.stop, episode.agent) == ("truncated", "bare+turns_left")
    assert told([turn.observation for turn in episode.turns]) == [3, 2, 1]
    assert told([episode.final_observation]) == [0]
    plain = game(door, "bare", KNOCKS, horizon=3)
    assert told([turn.observation for turn in plain.turns]) == [None] * 3
    for turn, other in zip(episode.turns, plain.turns, strict=True):
        assert turn.observation.startswith(other.observation + "\n\n")


def test_plans_and_summaries_take_no_turn_and_a_new_trial_has_all_again(door: gymnasium.Env[str, str]) -> None:
    talker = Talker(lambda _: "knock")
    episode = game(door, "bare+plan:1+window:1+retry+turns_left", talker, horizon=2)
    check_conversations(episode, talker.seen)
    for trial in (0, 1):
        acts = [t.observation for t in episode.turns if t.kind == "act" and t.trial == trial]
        assert told(acts) == [2, 1]
    # The look back at the first trial, which belongs to the second, sees that nothing was left.
    assert [told([t.observation]) for t in episode.turns if t.kind == "reflect"] == [[0]]


def test_what_the_world_ended_says_no_more(door: gymnasium.Env[str, str]) -> None:
    opener = Talker(lambda seat: "knock" if seat.acts < 1 else "open")
    episode = game(door, "bare+turns_left", opener, knocks=1, horizon=5)
    assert episode.stop == "terminated"
    assert told([episode.final_observation]) == [None]


def test_the_worlds_own_limit_counts_where_it_is_lower() -> None:
    for limit, horizon, expected in ((4, None, 4), (4, 2, 2), (2, 9, 2)):
        with closing(make("agentgym/TextCraft-v0", max_episode_steps=limit)) as env:
            talker = Talker(lambda _: "inventory")
            episode = play(Agent.parse("react+turns_left").wrap(env), talker, EpisodeSpec(), horizon=horizon)
            assert told([turn.observation for turn in episode.turns])[0] == expected


def test_without_any_limit_it_is_refused() -> None:
    class Endless(Door):
        """Made by hand, so that no registry gives it a limit."""

    seat = Agent.parse("bare+turns_left").wrap(Endless())
    with pytest.raises(ValueError, match="neither a horizon nor a limit of the environment"):
        play(seat, KNOCKS, EpisodeSpec("door/train/1"))
    assert Agent.parse("bare").wrap(Endless()).turns_told() is None


class Says(Policy):
    """The same in every turn."""

    name = "says"

    async def reply(self, context: TurnContext) -> Reply:
        return Reply("inventory")


def test_a_pool_tells_it_as_a_single_world_does() -> None:
    async def played() -> list[Episode]:
        world = Agent.parse("bare+turns_left").wrap(make("agentgym/TextCraft-v0"))
        with closing(world), closing(EnvPool(WorldSpec("agentgym/TextCraft-v0", {}), 2, "inline")) as pool:
            jobs = [EpisodeSpec("textcraft/test/oak_button", sample) for sample in range(2)]
            return [e async for e in play_pool(pool, Says(), jobs, env=world, horizon=3)]

    for episode in asyncio.run(played()):
        assert told([turn.observation for turn in episode.turns]) == [3, 2, 1]


@pytest.mark.parametrize(("name", "complaint"), [("react+turns_left:3", "takes no number; write turns_left, not")])
def test_the_habit_takes_no_number(name: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Agent.parse(name)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    habits=st.builds(Scaffold, plan=st.none() | st.integers(0, 2), window=st.integers(0, 2), reflect=st.integers(0, 2)),
    horizon=st.integers(1, 5),
)
def test_a_truncated_episode_would_have_gone_on_as_a_longer_one_does(
    door: gymnasium.Env[str, str], habits: Scaffold, horizon: int
) -> None:
    def once(turns: int) -> Episode:
        return game(door, f"bare{habits}", Talker(lambda _: "knock"), horizon=turns)

    short, long = once(horizon), once(horizon + 1)
    conversations = [conversation for conversation, _ in replay(long)]
    last = len(short.turns)
    assert continued(short) == (conversations[last - 1], conversations[last])


def test_what_ended_in_half_a_reply_can_not_go_on(door: gymnasium.Env[str, str]) -> None:
    cut = Talker(lambda _: Reply("kno", "length"))
    with pytest.raises(ValueError, match="doesn't end with an action, and so can't be continued"):
        continued(game(door, "bare", cut))
