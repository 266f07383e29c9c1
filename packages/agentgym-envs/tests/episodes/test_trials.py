"""Tests of the habit `retry`: trials of the same task, their rewards, and faults in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest
from agentgym_envs import EnvFault, Episode, EpisodeSpec, Reply, TurnContext, play, text_env
from agentgym_envs.agents.agent import Agent
from agentgym_envs.episodes import replay as replaying
from agentgym_envs.episodes.conversation import replay
from door_episodes import kinds, opens_too_early, play_door
from door_policies import FunctionPolicy, knocker
from door_world import Door, registered_env
from recording_policy import RecordingPolicy, check_conversations


@pytest.fixture
def door() -> Iterator[gymnasium.Env[str, str]]:
    with registered_env(Door) as env:
        yield env


class NumberedDoor(Door):
    """A door with a random number in its first observation, which counts its starts."""

    starts = 0

    def _start(self, task: Any) -> str:
        self.starts += 1
        return f"{super()._start(task)} Its number is {self.np_random.integers(1_000_000)}."


@pytest.mark.parametrize(("failures", "expected"), [(0, "aa"), (1, "a|raa"), (2, "a|ra|raa"), (3, "a|ra|ra")])
def test_task_is_retried_until_success_or_the_last_trial(failures: int, expected: str) -> None:
    with registered_env(NumberedDoor) as env:
        policy = opens_too_early(failures)
        episode = play_door(env, "+retry:2", policy, knocks=1)
        assert text_env(env).unwrapped.starts == min(failures, 2) + 1  # pyright: ignore[reportAttributeAccessIssue]
    assert (kinds(episode), episode.success, episode.stop) == (expected, failures < 3, "terminated")
    check_conversations(episode, policy.seen)


def test_trials_share_task_and_seed_and_keep_reflections() -> None:
    with registered_env(NumberedDoor) as env:
        policy = opens_too_early(2)
        episode = play(Agent.parse("bare+retry:2").wrap(env), policy, EpisodeSpec("door/train/1", seed=5))
    (first, _), (_, _), (second, _), (_, _), (third, _), _ = policy.seen
    observation = first[-1].content
    assert second[-1].content.endswith(f"1. reflect 2\n\nNow it begins again.\n\n{observation}")
    assert third[-1].content.endswith(f"1. reflect 2\n2. reflect 4\n\nNow it begins again.\n\n{observation}")
    assert len(first) == len(second) == len(third) == 2
    assert [turn.trial for turn in episode.turns] == [0, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("turns", range(7))
def test_a_failed_episode_is_replayed_to_where_it_failed(door: gymnasium.Env[str, str], turns: int) -> None:
    def knock_or_fail(_: TurnContext) -> str | EnvFault:
        return EnvFault("the endpoint is gone") if len(policy.contexts) > turns else "knock"

    policy = FunctionPolicy(knock_or_fail)
    wrapped, spec = Agent.parse("bare+retry:2").wrap(door), EpisodeSpec("door/train/5", seed=5)
    episode = play(wrapped, policy, spec, horizon=2, retries=0)
    assert (episode.stop, len(episode.turns)) == ("failed", turns)
    *_, taken = replaying.replay(text_env(door), episode, seed=5)
    assert taken == ("knock",) * (turns % 3)


def test_an_episode_that_failed_at_the_reset_of_a_trial_is_replayed() -> None:
    class Heavy(Door):
        def _start(self, task: Any) -> str:
            if self.knocks:
                raise EnvFault("the door is stuck")
            return super()._start(task)

    with registered_env(Heavy) as env:
        wrapped, spec = Agent.parse("bare+retry").wrap(env), EpisodeSpec("door/train/5", seed=5)
        episode = play(wrapped, knocker(), spec, horizon=2, retries=0)
    assert (episode.stop, len(episode.turns)) == ("failed", 3)
    *_, taken = replaying.replay(Door(), episode, seed=5)
    assert taken == ("knock", "knock")


def test_trials_share_a_randomly_drawn_task(door: gymnasium.Env[str, str]) -> None:
    policy = RecordingPolicy(lambda context: "knock")
    for seed in range(5):
        episode = play(Agent.parse("bare+retry").wrap(door), policy, EpisodeSpec(seed=seed), horizon=1)
        first, _, second = episode.turns
        assert second.observation == first.observation == f"Knock {episode.difficulty} times."


def test_new_trial_subtracts_the_rewards_of_the_last(door: gymnasium.Env[str, str]) -> None:
    episode = play_door(door, "+retry", RecordingPolicy(lambda context: "knock"), knocks=2, horizon=2)
    assert [turn.reward for turn in episode.turns] == [0.0, 0.5, -0.5, 0.0, 0.5]
    assert (episode.score, episode.success, episode.stop, episode.acts) == (0.5, False, "truncated", 4)
    assert episode.turns[2].observation == "You knocked 2 times."


def test_cut_off_reflection_keeps_the_score_of_the_trial(door: gymnasium.Env[str, str]) -> None:
    class CutOffReflections(RecordingPolicy):
        async def reply(self, context: TurnContext) -> Reply:
            reply = await super().reply(context)
            return Reply("half a", "length") if context.kind == "reflect" else reply

    policy = CutOffReflections(lambda context: "knock")
    episode = play_door(door, "+retry", policy, knocks=1, horizon=1)
    assert (kinds(episode), episode.stop, episode.score) == ("a|r", "length", 0.5)
    assert [turn.reward for turn in episode.turns] == [0.5, 0.0]
    check_conversations(episode, policy.seen)


def test_fault_in_a_later_trial_restarts_the_episode() -> None:
    class FaultySecondStart(NumberedDoor):
        def _start(self, task: Any) -> str:
            observation = super()._start(task)
            if self.starts == 2:
                raise EnvFault("the hinge broke")
            return observation

    def play_with(retries: int) -> Episode:
        with registered_env(FaultySecondStart) as env:
            return play_door(env, "+retry", RecordingPolicy(lambda context: "open"), knocks=1, retries=retries)

    assert kinds(play_with(1)) == "a|ra"
    failed = play_with(0)
    assert (kinds(failed), failed.stop, failed.score) == ("a|r", "failed", None)
    assert len(list(replay(failed))) == 2
