"""Episodes that the horizon truncated, and what the critic expects where they would have gone on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import plugin_examples
import pytest
import torch
from agentgym_envs import Episode
from agentgym_envs.episodes.conversation import continued
from agentgym_trainer.algorithms import GRPO, PPO, TokenBatch
from agentgym_trainer.config import Generation, RLConfig, WorldConfig
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.tokens.encode import next_context
from agentgym_trainer.tokens.trajectory import trajectory
from agentgym_trainer.trainers.rl_loop import RLLoop
from coin_loops import Build, begin, coins, collect, guess, update
from coin_world import ENV


def played(loop: RLLoop) -> list[Episode]:
    return [e for group in collect(loop, begin(loop)).own for e in group.episodes]


@pytest.mark.parametrize("agent", ["bare", "bare+plan:1", "bare+window:1", "bare+reflect:1"])
def test_a_truncated_episode_would_have_gone_on_as_a_longer_one_does(build: Build, agent: str) -> None:
    """The same samples, played with a horizon of one turn more: its next reply is given in that very context."""
    world = WorldConfig(ENV, agent=agent)
    generation = Generation(max_tokens=8, max_context=4000)
    turns = {}
    for horizon in (2, 3):
        loop = build(
            coins(world=world, horizon=FixedHorizon(horizon), generation=generation), lambda: "heads", name=str(horizon)
        )
        turns[horizon] = played(loop)
    for short, long in zip(turns[2], turns[3], strict=True):
        after = long.turns[len(short.turns)]
        assert after.reply.sample is not None
        context = next_context(loop.chat, short)
        if after.reply.sample.fresh:
            assert context == after.reply.sample.prompt
        else:
            assert context == trajectory(short).segments[-1].ids + after.reply.sample.prompt


def experience_in(
    loop: RLLoop, before: Callable[[list[Episode]], object] = lambda _: None
) -> tuple[TokenBatch, list[Episode]]:
    """What an update learns from, and the episodes, of which `before` is told before it does."""
    seen: list[TokenBatch] = []
    original = loop.learner.update
    collected = collect(loop, begin(loop))

    def watch(batch: Any, experience: TokenBatch, *args: Any, **more: Any) -> Any:
        seen.append(experience)
        return original(batch, experience, *args, **more)

    loop.learner.update = watch
    episodes = [e for group in collected.own if group.treatment == "keep" for e in group.usable]
    before(episodes)
    update(loop, 0, collected)
    return seen[0], episodes


@pytest.mark.parametrize("critic", ["head", "separate"])
def test_the_value_is_the_critics_at_the_end_of_the_context(build: Build, critic: Any) -> None:
    config = coins(algorithm=PPO, horizon=FixedHorizon(2), truncation="bootstrap")
    loop = build(config, guess(), critic=critic)
    head = loop.learner.actor.critic if critic == "head" else loop.learner.actor.critic.head
    with torch.no_grad():
        head.linear.weight.normal_(generator=torch.Generator().manual_seed(1))
    trunk = loop.learner.policy.base_model if critic == "head" else loop.learner.actor.critic.trunk
    expected: list[float] = []

    def slow(episodes: list[Episode]) -> None:
        """One after the other, before the update."""
        for episode in episodes:
            assert episode.stop == "truncated"
            ids = loop.chat.open(continued(episode)[1])
            with torch.no_grad():
                expected.append(head(trunk(torch.tensor([ids])).last_hidden_state[0, -1:]).item())

    experience, _ = experience_in(loop, before=slow)
    assert len({round(value, 4) for value in expected}) > 2
    assert experience.bootstrap_E is not None
    assert experience.bootstrap_E.tolist() == pytest.approx(expected, abs=1e-4)


def test_nothing_is_expected_where_the_world_ended_it_or_no_token_was_left(build: Build) -> None:
    for name, generation, horizon in (
        ("ended", Generation(max_tokens=12, max_context=400), 3),
        ("full", Generation(max_tokens=12, max_context=400, max_completion_tokens=4), 2),
    ):
        config = coins(algorithm=PPO, generation=generation, horizon=FixedHorizon(horizon), truncation="bootstrap")
        loop = build(config, guess(), critic="head", name=name)
        with torch.no_grad():
            loop.learner.actor.critic.linear.bias.fill_(0.5)
        experience, episodes = experience_in(loop)
        assert experience.bootstrap_E is not None
        if name == "full":
            assert all(sum(len(t.reply.sample.ids) for t in e.turns if t.reply.sample) >= 4 for e in episodes)
        assert not experience.bootstrap_E.any()
    config = coins(algorithm=PPO, horizon=FixedHorizon(2))
    assert experience_in(build(config, guess(), critic="head", name="plain"))[0].bootstrap_E is None


def test_bootstrapping_needs_a_critic() -> None:
    with pytest.raises(ValueError, match="needs advantages that bootstrap from the values of a critic: choose an"):
        RLConfig(algorithm=GRPO, truncation="bootstrap")
    assert RLConfig(algorithm=PPO, truncation="bootstrap").masked == frozenset()


def test_estimators_of_other_packages_bootstrap_where_they_say_so() -> None:
    for estimator in (
        plugin_examples.Scaled(inner=PPO.advantages),
        plugin_examples.Bootstrapped(inner=PPO.advantages),
    ):
        algorithm = replace(PPO, advantages=estimator)
        if isinstance(estimator, plugin_examples.Bootstrapped):
            assert RLConfig(algorithm=algorithm, truncation="bootstrap").truncation == "bootstrap"
        else:
            with pytest.raises(ValueError, match="truncation bootstrap needs advantages that bootstrap from"):
                RLConfig(algorithm=algorithm, truncation="bootstrap")
