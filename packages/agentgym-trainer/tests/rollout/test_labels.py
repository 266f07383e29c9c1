"""Tests of labels in rollouts: who is asked, in which turns and states, and what happens if there is no answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import ClassVar

import pytest
from agentgym_envs import (
    EnvFault,
    EnvPool,
    Episode,
    EpisodeSpec,
    LocalSlot,
    Policy,
    PoolSlot,
    Reply,
    Sample,
    TurnContext,
    play_episode,
)
from agentgym_envs.agents.agent import Agent
from agentgym_trainer.rollout.labels import LabelingPolicy, count_labels
from coin_world import ENV, Coin


class Guess(Policy):
    """A policy that says heads or tails at random, with sampled ids."""

    name: str = "guess"

    def __init__(self) -> None:
        self.forgotten: list[int] = []

    async def reply(self, context: TurnContext) -> Reply:
        text = ("heads", "tails")[int(context.rng.integers(2))]
        return Reply(text, sample=Sample((1,), (2,), (-1.0,)))

    def forget(self, key: int) -> None:
        self.forgotten.append(key)


class Silent(Guess):
    """A policy that has no tokens left in the second turn."""

    async def reply(self, context: TurnContext) -> Reply:
        return (
            replace(await super().reply(context), finish="length", sample=Sample((1,), (), ()))
            if context.acts
            else (await super().reply(context))
        )


class Speechless(Coin):
    """The expert has no action after the first turn."""

    def oracle(self) -> str:
        return super().oracle() if self._flip == 0 else None  # pyright: ignore[reportReturnType] - the case at hand


class Broken(Coin):
    """The expert raises after the first turn; the environment itself works."""

    broken: ClassVar[bool] = True

    def oracle(self) -> str:
        if self._flip and self.broken and not self._acting:
            raise RuntimeError("no plan, token=hunter2")
        return super().oracle()

    _acting = False

    def _act(self, action: str):
        self._acting = True
        try:
            return super()._act(action)
        finally:
            self._acting = False


def play_labeled(
    env: Coin | None = None,
    *,
    policy: Policy | None = None,
    expert: Policy | None = None,
    fraction: float = 1.0,
    samples: int = 4,
    agent: str = "bare",
    pooled: bool = False,
) -> list[Episode]:
    async def play_all() -> list[Episode]:
        wrapped = Agent.parse(agent).wrap(env or Coin())
        labeling = LabelingPolicy(policy or Guess(), expert, fraction) if fraction else policy or Guess()
        with EnvPool(ENV, 1) as pool:
            slot = PoolSlot(pool, 0, wrapped) if pooled else LocalSlot(wrapped)
            specs = [EpisodeSpec("coin/train/5", sample, 0) for sample in range(samples)]
            return [await play_episode(slot, labeling, spec, horizon=3) for spec in specs]

    return asyncio.run(play_all())


def labels(episode: Episode) -> list[str | None]:
    return [turn.reply.label for turn in episode.turns]


@pytest.mark.parametrize("pooled", [False, True])
def test_labels_are_the_experts_actions_in_the_states_that_the_policy_reached(pooled: bool) -> None:
    episodes = play_labeled(pooled=pooled)
    assert {turn.action for episode in episodes for turn in episode.turns} == {"heads", "tails"}
    assert [labels(episode) for episode in episodes] == [["tails", "heads", "tails"]] * 4
    assert all(Episode.from_json(episode.to_json()) == episode for episode in episodes)


def test_the_policy_samples_the_same_with_and_without_labels() -> None:
    actions = [
        [[turn.action for turn in episode.turns] for episode in play_labeled(fraction=fraction)]
        for fraction in (0.0, 0.4, 1.0)
    ]
    assert actions[0] == actions[1] == actions[2]


def test_a_fraction_of_the_turns_is_labeled() -> None:
    asked = [label is not None for episode in play_labeled(fraction=0.3, samples=300) for label in labels(episode)]
    assert sum(asked) / len(asked) == pytest.approx(0.3, abs=0.05)  # 3 standard errors
    again = [label is not None for episode in play_labeled(fraction=0.3, samples=300) for label in labels(episode)]
    assert again == asked


def test_only_actions_are_labeled_in_the_agents_format() -> None:
    for episode in play_labeled(agent="react+plan+reflect:1"):
        for turn in episode.turns:
            assert (turn.reply.label is not None) == (turn.kind == "act")
            assert turn.kind != "act" or "Action: " in (turn.reply.label or "")


def test_an_expert_without_an_action_labels_nothing() -> None:
    (episode,) = play_labeled(Speechless(), samples=1)
    assert labels(episode) == ["tails", None, None]
    assert not any(turn.reply.label_error for turn in episode.turns)
    assert not episode.failed


def test_an_expert_that_raises_is_counted_and_not_fatal() -> None:
    env = Broken()
    (episode,) = play_labeled(env, samples=1)
    assert not episode.failed
    assert labels(episode) == ["tails", None, None]
    assert [turn.reply.label_error is not None for turn in episode.turns] == [False, True, True]
    error = episode.turns[1].reply.label_error or ""
    assert "RuntimeError: no plan" in error
    assert "hunter2" not in error
    agreeing = int(episode.turns[0].action == "tails")
    assert count_labels(Agent.parse("bare").wrap(env), [episode]) == (1, agreeing, 2)


def test_turns_without_tokens_are_not_labeled() -> None:
    (episode,) = play_labeled(policy=Silent(), samples=1)
    assert episode.stop == "length"
    assert labels(episode) == ["tails", None]


class Teacher(Guess):
    """A policy as the expert: says tails, is cut off in the second turn, and raises in the third."""

    async def reply(self, context: TurnContext) -> Reply:
        context.rng.integers(2)  # has no effect on the policy's generator
        if context.acts == 2:
            raise EnvFault("the endpoint is gone")
        return Reply("tails", "length" if context.acts else "stop")


def test_another_policy_can_be_the_expert() -> None:
    teacher, student = Teacher(), Guess()
    episodes = play_labeled(policy=student, expert=teacher)
    assert [labels(episode) for episode in episodes] == [["tails", None, None]] * 4
    assert {episode.turns[2].reply.label_error for episode in episodes} == {"the endpoint is gone"}
    assert len(teacher.forgotten) == len(student.forgotten) == 4
    actions = [[turn.action for turn in episode.turns] for episode in episodes]
    assert actions == [[turn.action for turn in episode.turns] for episode in play_labeled(fraction=0.0)]
    agreeing = sum(episode.turns[0].action == "tails" for episode in episodes)
    assert count_labels(Agent.parse("bare").wrap(Coin()), episodes) == (4, agreeing, 4)
