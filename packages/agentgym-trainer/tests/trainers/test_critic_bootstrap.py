"""Tests of bootstrapping truncated episodes from the critic's values."""

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
from coin_loops import Build, collect_rollouts, initial_state, loop_config, random_guesses, update_on_rollouts
from coin_world import ENV


def play(loop: RLLoop) -> list[Episode]:
    return [e for group in collect_rollouts(loop, initial_state(loop)).own for e in group.episodes]


@pytest.mark.parametrize("agent", ["bare", "bare+plan:1", "bare+window:1", "bare+reflect:1"])
def test_the_next_context_is_that_of_a_longer_episode(build: Build, agent: str) -> None:
    """The same episodes with a horizon of one more turn have their next reply in exactly this context."""
    world = WorldConfig(ENV, agent=agent)
    generation = Generation(max_tokens=8, max_context=4000)
    episodes = {}
    for horizon in (2, 3):
        loop = build(
            loop_config(world=world, horizon=FixedHorizon(horizon), generation=generation),
            lambda: "heads",
            name=str(horizon),
        )
        episodes[horizon] = play(loop)
    for short, long in zip(episodes[2], episodes[3], strict=True):
        next_turn = long.turns[len(short.turns)]
        assert next_turn.reply.sample is not None
        context = next_context(loop.chat, short)
        if next_turn.reply.sample.fresh:
            assert context == next_turn.reply.sample.prompt
        else:
            assert context == trajectory(short).segments[-1].ids + next_turn.reply.sample.prompt


def update_inputs(
    loop: RLLoop, before: Callable[[list[Episode]], object] = lambda _: None
) -> tuple[TokenBatch, list[Episode]]:
    """Update on the rollouts of a step; return the token batch and the episodes, for which `before` is called first."""
    batches: list[TokenBatch] = []
    original = loop.learner.update
    collected = collect_rollouts(loop, initial_state(loop))

    def record(batch: Any, token_batch: TokenBatch, *args: Any, **more: Any) -> Any:
        batches.append(token_batch)
        return original(batch, token_batch, *args, **more)

    loop.learner.update = record
    episodes = [e for group in collected.own if group.treatment == "keep" for e in group.usable]
    before(episodes)
    update_on_rollouts(loop, 0, collected)
    return batches[0], episodes


@pytest.mark.parametrize("critic", ["head", "separate"])
def test_bootstrap_values_are_the_critics_at_the_end_of_the_context(build: Build, critic: Any) -> None:
    config = loop_config(algorithm=PPO, horizon=FixedHorizon(2), truncation="bootstrap")
    loop = build(config, random_guesses(), critic=critic)
    head = loop.learner.actor.critic if critic == "head" else loop.learner.actor.critic.head
    with torch.no_grad():
        head.linear.weight.normal_(generator=torch.Generator().manual_seed(1))
    trunk = loop.learner.policy.base_model if critic == "head" else loop.learner.actor.critic.trunk
    expected: list[float] = []

    def slow(episodes: list[Episode]) -> None:
        """Compute the values one at a time, before the update."""
        for episode in episodes:
            assert episode.stop == "truncated"
            ids = loop.chat.open(continued(episode)[1])
            with torch.no_grad():
                expected.append(head(trunk(torch.tensor([ids])).last_hidden_state[0, -1:]).item())

    token_batch, _ = update_inputs(loop, before=slow)
    assert len({round(value, 4) for value in expected}) > 2
    assert token_batch.bootstrap_E is not None
    assert token_batch.bootstrap_E.tolist() == pytest.approx(expected, abs=1e-4)


def test_terminated_and_over_budget_episodes_are_not_bootstrapped(build: Build) -> None:
    for name, generation, horizon in (
        ("ended", Generation(max_tokens=12, max_context=400), 3),
        ("full", Generation(max_tokens=12, max_context=400, max_completion_tokens=4), 2),
    ):
        config = loop_config(
            algorithm=PPO, generation=generation, horizon=FixedHorizon(horizon), truncation="bootstrap"
        )
        loop = build(config, random_guesses(), critic="head", name=name)
        with torch.no_grad():
            loop.learner.actor.critic.linear.bias.fill_(0.5)
        token_batch, episodes = update_inputs(loop)
        assert token_batch.bootstrap_E is not None
        if name == "full":
            assert all(sum(len(t.reply.sample.ids) for t in e.turns if t.reply.sample) >= 4 for e in episodes)
        assert not token_batch.bootstrap_E.any()
    config = loop_config(algorithm=PPO, horizon=FixedHorizon(2))
    assert update_inputs(build(config, random_guesses(), critic="head", name="plain"))[0].bootstrap_E is None


def test_bootstrapping_requires_a_critic() -> None:
    with pytest.raises(ValueError, match="needs advantages that bootstrap from the values of a critic: choose an"):
        RLConfig(algorithm=GRPO, truncation="bootstrap")
    assert RLConfig(algorithm=PPO, truncation="bootstrap").masked == frozenset()


def test_custom_estimators_bootstrap_if_they_declare_it() -> None:
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
