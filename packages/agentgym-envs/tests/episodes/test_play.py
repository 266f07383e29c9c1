"""Tests of `play` and `play_many`: records, stop reasons, faults and retries."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium
import pytest
from agentgym_envs import (
    EnvFault,
    Episode,
    EpisodeSpec,
    Feedback,
    ReAct,
    Reply,
    Sample,
    Task,
    play,
    play_many,
    text_env,
)
from agentgym_envs.agents.agent import Agent
from agentgym_envs.agents.formats import FunctionCall
from agentgym_envs.core.action_schema import Function
from agentgym_envs.episodes.policy import last_steps
from door_policies import FunctionPolicy, expert, knocker
from door_world import Door, registered_env

pytestmark = pytest.mark.quick


@pytest.fixture
def door() -> Iterator[gymnasium.Env[str, str]]:
    with registered_env(Door) as env:
        yield env


def test_episode_records_observations_replies_and_rewards(door: gymnasium.Env[str, str]) -> None:
    policy = expert()
    episode = play(door, policy, EpisodeSpec("door/test/1", sample=3))
    assert [(turn.observation, turn.reply.text, turn.action, turn.valid, turn.reward) for turn in episode.turns] == [
        ("Knock 1 times.", "knock", "knock", True, 0.5),
        ("You knocked 1 times.", "open", "open", True, 0.5),
    ]
    assert (episode.stop, episode.score, episode.success, episode.error) == ("terminated", 1.0, True, None)
    assert (episode.task_id, episode.split, episode.category, episode.difficulty) == (
        "door/test/1",
        "test",
        "knocks-1",
        1,
    )
    assert (episode.policy, episode.sample, episode.final_observation) == ("oracle", 3, "The door opens.")
    assert len({turn.state_key for turn in episode.turns}) == 2
    assert episode.seconds.keys() == {"world", "policy"}
    assert Episode.from_json(episode.to_json()) == episode


def test_contexts_contain_the_whole_conversation(door: gymnasium.Env[str, str]) -> None:
    policy = FunctionPolicy(lambda context: "Action: knock")
    play(ReAct(door), policy, EpisodeSpec("door/train/2"), horizon=2)
    first, second = policy.contexts
    assert [message.role for message in second.conversation] == ["system", "user", "assistant", "user"]
    assert second.conversation[:2] == first.conversation
    assert first.conversation[0].content == ReAct(door).instructions
    assert second.conversation[3].content == "You knocked 1 times."
    assert first.key == second.key
    assert first.rng is second.rng


def test_contexts_contain_the_valid_actions_of_their_trial_and_what_followed(door: gymnasium.Env[str, str]) -> None:
    policy = FunctionPolicy(
        lambda context: ("knock", "sing", "knock")[context.acts] if context.kind == "act" else "No."
    )
    play(Agent.parse("bare+plan+retry").wrap(door), policy, EpisodeSpec("door/train/5"), horizon=3)
    first = ("knock", "You knocked 1 times.")
    assert [(context.kind, context.steps) for context in policy.contexts] == [
        ("plan", ()),
        ("act", ()),
        ("act", (first,)),
        ("act", (first,)),
        ("reflect", ()),
        ("plan", ()),
        ("act", ()),
        ("act", (first,)),
        ("act", (first,)),
    ]


def test_last_steps_join_repetitions_and_leave_out_long_observations() -> None:
    assert last_steps(()) == ""
    steps = [("look", "A room.\nA door."), *[("wait", "You wait.")] * 3, ("read", "x" * 121), ("go", "")]
    assert last_steps(steps) == "My last actions:\n- look\n- wait: You wait. (3 times)\n- read\n- go"
    many = [("go", f"Room {number}.") for number in range(20)]
    assert last_steps([*many, *many[-1:] * 5]).splitlines()[1:] == [
        *(f"- go: Room {number}." for number in range(12, 19)),
        "- go: Room 19. (6 times)",
    ]


def test_conversation_without_instructions_starts_with_the_observation(door: gymnasium.Env[str, str]) -> None:
    policy = expert()
    episode = play(ReAct(door, instructions=""), policy, EpisodeSpec("door/train/0"), horizon=1)
    assert [message.role for message in policy.contexts[0].conversation] == ["user"]
    assert episode.instructions == ""


def test_horizon_truncates_the_episode(door: gymnasium.Env[str, str]) -> None:
    episode = play(door, knocker(), EpisodeSpec("door/train/5"), horizon=3)
    assert (episode.stop, len(episode.turns), episode.score, episode.success) == ("truncated", 3, 0.0, False)
    with pytest.raises(ValueError, match="at least 1 turn, not 0"):
        play(door, knocker(), horizon=0)


def test_termination_at_the_horizon_is_not_truncation(door: gymnasium.Env[str, str]) -> None:
    assert play(door, expert(), EpisodeSpec("door/train/2"), horizon=3).stop == "terminated"


def test_step_limit_of_the_environment_truncates() -> None:
    with registered_env(Door, max_episode_steps=4) as env:
        episode = play(env, knocker(), EpisodeSpec("door/train/1"))
    assert (episode.stop, len(episode.turns)) == ("truncated", 4)


def test_cut_off_reply_ends_the_episode_without_acting(door: gymnasium.Env[str, str]) -> None:
    cut_off = Reply("knock", finish="length", sample=Sample((1,), (2,), (-1.0,)))
    policy = FunctionPolicy(lambda context: "knock" if len(context.conversation) < 4 else cut_off)
    episode = play(door, policy, EpisodeSpec("door/train/2"))
    last = episode.turns[-1]
    assert (episode.stop, len(episode.turns), episode.success) == ("length", 2, False)
    assert (last.reply, last.action, last.valid, last.reward) == (cut_off, None, False, 0.0)
    assert text_env(door).step("nonsense")[4]["raw"] == {"knocks": 1}


def test_malformed_reply_costs_a_turn(door: gymnasium.Env[str, str]) -> None:
    episode = play(ReAct(door), knocker(), EpisodeSpec("door/train/1"), horizon=2)
    assert [(turn.action, turn.valid) for turn in episode.turns] == [(None, False)] * 2
    assert "no action" in episode.final_observation


class FaultyDoor(Door):
    """Raises a fault at the second action of the first `faults` attempts."""

    faults = 0
    starts = 0

    def _start(self, task: Task) -> str:
        self.starts += 1
        return super()._start(task)

    def _act(self, action: str) -> Feedback:
        if self.starts <= self.faults and self.knocks == 1:
            raise EnvFault("the hinge broke")
        return super()._act(action)


class StartsOnce(Door):
    """Breaks at the start of its second episode."""

    starts = 0

    def _start(self, task: Task) -> str:
        self.starts += 1
        if self.starts > 1:
            raise EnvFault("the hinge broke")
        return super()._start(task)


def test_the_fault_of_an_environment_that_cannot_start_a_task_of_its_own_choice_is_raised() -> None:
    with registered_env(StartsOnce) as env:
        env.reset(options={"task": "door/test/0"})
        assert play(env, knocker(), EpisodeSpec("door/test/1")).error == "EnvFault: the hinge broke"
        with pytest.raises(EnvFault, match="the hinge broke"):
            play(env, knocker(), EpisodeSpec(seed=1))


def test_a_drawn_task_that_cannot_be_started_again_is_recorded_as_failed() -> None:
    with registered_env(StartsOnce) as env:
        wrapped = Agent.parse("bare+retry").wrap(env)
        episode = play(wrapped, knocker(), EpisodeSpec(seed=1, split="test"), horizon=1, retries=0)
    assert (episode.stop, episode.error, episode.split) == ("failed", "EnvFault: the hinge broke", "test")
    assert episode.turns[0].observation == f"Knock {episode.difficulty} times."


@pytest.mark.parametrize(("faults", "retries"), [(1, 1), (2, 2), (0, 0)])
def test_fault_is_retried_from_the_start(faults: int, retries: int) -> None:
    with registered_env(type("FaultyDoor", (FaultyDoor,), {"faults": faults})) as env:
        episode = play(env, expert(), EpisodeSpec("door/train/3"), retries=retries)
        assert text_env(env).unwrapped.starts == faults + 1  # pyright: ignore[reportAttributeAccessIssue]
    assert (episode.stop, episode.score, len(episode.turns)) == ("terminated", 1.0, 4)


def test_persistent_fault_fails_the_episode_without_a_score() -> None:
    with registered_env(type("FaultyDoor", (FaultyDoor,), {"faults": 2})) as env:
        failed, *others = play_many(env, expert(), [EpisodeSpec(f"door/train/{knocks}") for knocks in (3, 2, 1)])
    assert (failed.stop, failed.failed, failed.score, failed.success) == ("failed", True, None, None)
    assert failed.error == "EnvFault: the hinge broke"
    assert failed.task_id == "door/train/3"
    assert [turn.reward for turn in failed.turns] == [0.0]
    assert [episode.stop for episode in others] == ["terminated", "terminated"]
    assert Episode.from_json(failed.to_json()) == failed


class NeverStarts(Door):
    def _start(self, task: Task) -> str:
        raise EnvFault("no door today")


def test_environment_that_never_starts_fails_every_episode() -> None:
    with registered_env(NeverStarts) as env:
        episodes = list(play_many(env, knocker(), [EpisodeSpec(f"door/train/{i}") for i in range(3)]))
    assert [(episode.stop, episode.turns) for episode in episodes] == [("failed", ())] * 3


class FaultyFunctions(Door):
    @property
    def functions(self) -> tuple[Function, ...]:
        raise EnvFault("nobody there to ask")


def test_fault_in_functions_fails_the_episode() -> None:
    with registered_env(FaultyFunctions) as env:
        episode = play(FunctionCall(env), knocker(), EpisodeSpec("door/train/1"))
    assert (episode.stop, episode.error, episode.tools) == ("failed", "EnvFault: nobody there to ask", ())


def test_fault_of_the_policy_fails_the_episode(door: gymnasium.Env[str, str]) -> None:
    episode = play(door, FunctionPolicy(lambda context: EnvFault("the endpoint is gone")), EpisodeSpec("door/train/1"))
    assert (episode.stop, episode.error) == ("failed", "EnvFault: the endpoint is gone")


def test_task_is_drawn_from_the_split_by_seed(door: gymnasium.Env[str, str]) -> None:
    drawn = [play(door, expert(), EpisodeSpec(split="test", seed=seed)).task_id for seed in range(10)]
    assert drawn == [play(door, expert(), EpisodeSpec(split="test", seed=seed)).task_id for seed in range(10)]
    assert {"door/test/0", "door/test/1", "door/test/2"} >= set(drawn) > {drawn[0]}
