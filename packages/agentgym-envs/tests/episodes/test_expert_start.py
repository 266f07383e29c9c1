"""Tests of episodes that begin where the environment's expert has some turns left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from pkgutil import resolve_name
from typing import Any, ClassVar

import gymnasium
import pytest
from agentgym_envs import (
    WORLDS,
    EnvPool,
    Episode,
    EpisodeSpec,
    ExpertStart,
    Feedback,
    Policy,
    RegisteredWorld,
    Reply,
    Task,
    TurnContext,
    make,
    play_many,
    play_pool,
)
from agentgym_envs.agents.agent import Agent
from agentgym_envs.agents.formats import REPLY_FORMATS
from agentgym_envs.episodes.conversation import replay
from door_policies import FunctionPolicy, expert, knocker
from door_world import Door, registered_env
from serve_process import serve_process

KNOCKS = 5  # the expert of this task knocks five times and opens
TASK = f"door/train/{KNOCKS}"


@pytest.fixture
def door() -> Iterator[gymnasium.Env[str, str]]:
    with registered_env(Door) as env:
        yield env


def play_door(
    env: gymnasium.Env[str, str],
    policy: FunctionPolicy,
    remaining: int,
    *,
    samples: int = 1,
    agent: str = "bare",
    horizon: int | None = None,
    retries: int = 0,
) -> list[Episode]:
    specs = [EpisodeSpec(TASK, sample, seed=3) for sample in range(samples)]
    wrapped, start = Agent.parse(agent).wrap(env), ExpertStart(remaining)
    return list(play_many(wrapped, policy, specs, horizon=horizon, retries=retries, expert_start=start))


@pytest.mark.parametrize("remaining", [1, 2, 5, 6, 7, 100])
def test_the_policy_begins_where_the_expert_has_that_many_turns_left(
    door: gymnasium.Env[str, str], remaining: int
) -> None:
    policy = expert()
    (episode,) = play_door(door, policy, remaining)
    led = max(0, KNOCKS + 1 - remaining)
    assert [turn.reply.expert for turn in episode.turns] == [True] * led + [False] * (KNOCKS + 1 - led)
    assert [turn.loss for turn in episode.turns] == [not turn.reply.expert for turn in episode.turns]
    assert [turn.action for turn in episode.turns] == ["knock"] * KNOCKS + ["open"]
    assert (episode.success, episode.acts, len(policy.contexts)) == (True, KNOCKS + 1 - led, KNOCKS + 1 - led)
    assert policy.contexts[0].acts == led
    # The expert's turns are in the policy's context.
    assert [message.content for message in policy.contexts[0].conversation if message.role == "assistant"] == [
        "knock"
    ] * led


def test_the_horizon_counts_the_policys_turns_only(door: gymnasium.Env[str, str]) -> None:
    (episode,) = play_door(door, knocker(), 2, horizon=3)
    assert (episode.stop, episode.acts, len(episode.turns)) == ("truncated", 3, 4 + 3)


def test_turns_left_are_those_of_the_policy(door: gymnasium.Env[str, str]) -> None:
    policy = FunctionPolicy(lambda context: "Action: knock")
    play_door(door, policy, 2, horizon=3, agent="react+turns_left")
    assert [context.conversation[-1].content.splitlines()[-1] for context in policy.contexts] == [
        f"Turns left: {left}." for left in (3, 2, 1)
    ]


def test_all_episodes_of_a_task_have_the_same_prefix(door: gymnasium.Env[str, str]) -> None:
    episodes = play_door(
        door, FunctionPolicy(lambda context: ("open", "knock")[context.sample % 2]), 3, samples=4, horizon=3
    )
    prefixes = [tuple(turn for turn in episode.turns if turn.reply.expert) for episode in episodes]
    assert len(prefixes[0]) == 3
    assert len(set(prefixes)) == 1
    assert len({episode.turns[3].state_key for episode in episodes}) == 1
    assert len({episode.turns[3].action for episode in episodes}) == 2


@pytest.mark.parametrize("reply_format", sorted(REPLY_FORMATS))
def test_the_expert_replies_in_the_agents_format(door: gymnasium.Env[str, str], reply_format: str) -> None:
    wrapped = Agent.parse(reply_format).wrap(door)
    policy = FunctionPolicy(lambda context: wrapped.format("open"))
    (episode,) = play_door(door, policy, 1, agent=reply_format)
    assert episode.success
    assert [turn.action for turn in episode.turns] == ["knock"] * KNOCKS + ["open"]
    assert all(wrapped.parse(turn.reply.text) == "knock" for turn in episode.turns[:-1])
    assert [turn.valid for turn in episode.turns] == [True] * (KNOCKS + 1)
    has_reasons = "I have knocked 2 of 5 times." in episode.turns[2].reply.text
    assert has_reasons == wrapped.thinks


def test_replay_and_json_keep_the_experts_turns(door: gymnasium.Env[str, str]) -> None:
    agent = "react+plan:2+reflect:2+window:2"
    policy = FunctionPolicy(lambda context: "Action: knock" if context.kind == "act" else f"my {context.kind}")
    (episode,) = play_door(door, policy, 2, agent=agent, horizon=4)
    read = Episode.from_json(episode.to_json())
    assert read == episode
    conversations = [conversation for conversation, turn in replay(read) if not turn.reply.expert]
    assert conversations == [context.conversation for context in policy.contexts]
    prefix = [turn for turn in episode.turns if turn.reply.expert]
    assert {turn.kind for turn in prefix} == {"act", "plan", "reflect", "summary"}
    assert next(turn.reply.text for turn in prefix if turn.kind == "plan").startswith("Knock until")
    summary = next(turn.reply.text for turn in prefix if turn.kind == "summary")
    assert summary.startswith("My last actions:\n- knock: You knocked 1 times.\n- knock: You knocked 2 times.")
    assert sum(turn.kind == "act" for turn in prefix) == 4
    assert all(turn.kind != "act" for turn in episode.turns if turn.reply.text.startswith("my"))


def test_every_trial_begins_there(door: gymnasium.Env[str, str]) -> None:
    def reply(context: TurnContext) -> str:
        if context.kind != "act":
            return "I will open the door after five knocks."
        tried = any("You have tried" in message.content for message in context.conversation)
        return "Action: knock" if tried and context.info["raw"]["knocks"] != KNOCKS else "Action: open"

    (episode,) = play_door(door, FunctionPolicy(reply), 2, agent="react+retry:1", horizon=2)
    assert [(turn.kind, turn.trial, turn.reply.expert) for turn in episode.turns] == [
        *[("act", 0, True)] * 4,
        ("act", 0, False),
        ("reflect", 1, False),
        *[("act", 1, True)] * 4,
        *[("act", 1, False)] * 2,
    ]
    assert episode.success
    assert [turn for _, turn in replay(episode)] == list(episode.turns)


class Clueless(Door):
    def oracle(self) -> str:
        raise NotImplementedError("nobody knows")


class Wrong(Door):
    def oracle(self) -> str:
        return "open"


class Endless(Door):
    def oracle(self) -> str:
        return "dance"


class Drifting(Door):
    """A door whose state is another one at each reset."""

    resets: ClassVar[int] = 0

    def _start(self, task: Any) -> str:
        Drifting.resets += 1
        return super()._start(task)

    def _state(self) -> str:
        return f"{super()._state()} {self.resets}"


@pytest.mark.parametrize(
    ("world", "error"),
    [
        (Clueless, "NotImplementedError: nobody knows"),
        (Wrong, "did not reach the goal of door/train/5 in 1 turns"),
        (Endless, "did not reach the goal of door/train/5 in 1000 turns"),
        (Drifting, "actions of the expert in door/train/5 led to another state than before"),
    ],
)
def test_without_a_reliable_expert_the_episode_fails(world: type[Door], error: str) -> None:
    policy = knocker()
    with registered_env(world) as env:
        (episode,) = play_door(env, policy, 2, retries=1)
    assert episode.failed
    assert error in (episode.error or "")
    assert not policy.contexts


class Ajar(Door):
    """A door that falls shut once: the first step after a reset in which nobody had knocked raises."""

    def _act(self, action: str) -> Feedback:
        if self.knocks == 2 and not Ajar.fell:
            Ajar.fell = True
            raise RuntimeError("it fell shut")
        return super()._act(action)

    fell: ClassVar[bool] = False


def test_a_fault_of_the_expert_is_retried() -> None:
    Ajar.fell = False
    with registered_env(Ajar) as env:
        (episode,) = play_door(env, expert(), 2, retries=1)
    assert episode.success
    assert episode.acts == 2


class Drawn(Door):
    """Draws how often to knock."""

    def _start(self, task: Task) -> str:
        super()._start(task)
        self.goal = int(self.np_random.integers(3, 100))
        return f"Knock {self.goal} times."


def test_episodes_with_seeds_of_their_own_for_the_environment_have_prefixes_of_their_own() -> None:
    specs = [EpisodeSpec(TASK, sample, seed=3, env_seed=sample) for sample in range(2)]
    with registered_env(Drawn) as env:
        episodes = list(play_many(env, expert(), specs, expert_start=ExpertStart(2), retries=0))
    assert [(episode.error, episode.success, episode.acts) for episode in episodes] == [(None, True, 2)] * 2
    assert len({len(episode.turns) for episode in episodes}) == 2


def test_the_spec_must_determine_the_prefix(door: gymnasium.Env[str, str]) -> None:
    for spec in (EpisodeSpec(TASK), EpisodeSpec(None, seed=3)):
        with pytest.raises(ValueError, match="must have a task id and a seed"):
            list(play_many(door, expert(), [spec], expert_start=ExpertStart(2)))
    with pytest.raises(ValueError, match="at least 1 turn before its end, not 0"):
        ExpertStart(0)


# All registered environments, in pools.


class Novice(Policy):
    """Replies without an action, in a pool."""

    name = "novice"

    async def reply(self, context: TurnContext) -> Reply:
        return Reply("I don't know.")


def play_in_pool(world: str, task: str, backend: str, *, slots: int, remaining: int) -> list[Episode]:
    with (
        closing(Agent.parse("react").wrap(make(world))) as wrapped,
        EnvPool(f"agentgym_envs:{world}", slots, backend) as pool,
    ):
        specs = [EpisodeSpec(task, sample, seed=5) for sample in range(slots)]

        async def play_all() -> list[Episode]:
            start = ExpertStart(remaining)
            played = play_pool(pool, Novice(), specs, env=wrapped, horizon=1, retries=0, expert_start=start)
            return sorted([episode async for episode in played], key=lambda episode: episode.sample)

        return asyncio.run(play_all())


def longer_task(world: str) -> tuple[str, list[str]]:
    """Return the first training task that takes the expert more than one turn, and the expert's actions."""
    with closing(make(world)) as env:
        for task in env.get_wrapper_attr("tasks").train.ids:
            env.reset(seed=5, options={"task": task})
            actions, over = list[str](), False
            while not over:
                actions.append(env.get_wrapper_attr("oracle")())
                *_, terminated, truncated, _ = env.step(actions[-1])
                over = terminated or truncated
            if len(actions) > 1:
                return task, actions
    raise AssertionError("all tasks take one turn")


def assert_begins_near_the_end(episodes: Sequence[Episode], solution: Sequence[str], remaining: int) -> None:
    for episode in episodes:
        assert not episode.failed, episode.error
        *prefix, own = episode.turns
        assert [turn.action for turn in prefix] == list(solution[: len(solution) - remaining])
        assert all(turn.reply.expert for turn in prefix)
        assert not own.reply.expert
        assert (own.state_key, own.observation) == (episodes[0].turns[-1].state_key, episodes[0].turns[-1].observation)


@pytest.mark.usefixtures("playable")
@pytest.mark.parametrize(
    "world",
    [
        pytest.param(w, marks=[pytest.mark.long] * (resolve_name(w.entry_point).step_seconds > 5e-3), id=w.id)
        for w in WORLDS
    ],
)
def test_every_registered_environment_can_begin_near_the_end(world: RegisteredWorld) -> None:
    task, solution = longer_task(world.id)
    assert_begins_near_the_end(play_in_pool(world.id, task, "thread", slots=2, remaining=1), solution, 1)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["inline", "process", "http"])
def test_every_backend_of_a_pool_can_begin_near_the_end(backend: str) -> None:
    world = "agentgym/TextCraft-v0"
    task, solution = longer_task(world)
    with serve_process() as server:
        place = server.url if backend == "http" else backend
        assert_begins_near_the_end(play_in_pool(world, task, place, slots=2, remaining=1), solution, 1)
