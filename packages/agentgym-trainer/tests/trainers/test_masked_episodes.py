"""Tests of episodes masked from the loss, by token budget or horizon, which still count in baselines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from agentgym_envs import read_episodes
from agentgym_trainer.algorithms import GRPO, PPO, AdvantageOutput, Algorithm, ReinforcePP
from agentgym_trainer.config import RLConfig, WorldConfig
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.rollout.groups import EpisodeGroup
from agentgym_trainer.tokens.batch import make_batch
from coin_loops import (
    Build,
    collect_rollouts,
    initial_state,
    loop_config,
    random_guesses,
    take_step,
    update_on_rollouts,
)
from coin_world import OTHER
from toy_learner import episode_with_samples, make_learner, make_trajectories, update_on

PLAIN = replace(GRPO, kl=replace(GRPO.kl, where="off"))


@pytest.mark.parametrize(("algorithm", "critic"), [(PLAIN, None), (PPO, "head")], ids=["grpo", "ppo"])
def test_updates_train_only_on_episodes_in_the_loss(
    new_model: Callable[..., Any], algorithm: Algorithm, critic: Any
) -> None:
    """Their advantages still depend on the masked episodes."""
    trajectories = [replace(t, in_loss=e not in (1, 4)) for e, t in enumerate(make_trajectories(5, 7))]
    students = [make_learner(new_model(), critic=critic, lr=1e-3) for _ in range(2)]
    metrics = update_on(students[0], trajectories, algorithm, epochs=2, minibatches=2)

    trained = make_batch([t for t in trajectories if t.in_loss])
    token_batch = students[1].compute_logprobs(make_batch(trajectories), algorithm)
    advantages, mask_N = algorithm.compute_advantages(token_batch, students[1].total), token_batch.loss_mask_N
    fields = {
        "advantages_N": advantages.advantages_N,
        "value_targets_N": advantages.value_targets_N,
        "value_mask_N": advantages.value_mask_N,
    }
    in_loss: Any = {name: None if value is None else value[mask_N] for name, value in fields.items()}
    unmasked = students[1].compute_logprobs(trained, algorithm)
    expected = students[1].update(
        trained, unmasked, AdvantageOutput(metrics={}, **in_loss), algorithm, epochs=2, minibatches=2
    )
    assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-6)
    for actual, other in zip(students[0].actor.parameters(), students[1].actor.parameters(), strict=True):
        torch.testing.assert_close(actual, other, atol=1e-6, rtol=0)


def test_an_update_with_only_masked_episodes_changes_nothing(new_model: Callable[..., Any]) -> None:
    student = make_learner(new_model())
    before = [parameter.clone() for parameter in student.actor.parameters()]
    assert update_on(student, [replace(t, in_loss=False) for t in make_trajectories(5)], PLAIN) == {}
    assert all(torch.equal(old, new) for old, new in zip(before, student.actor.parameters(), strict=True))


def runaway(seed: int) -> Callable[[], str]:
    """Return a script that replies "heads", which is always right, or sometimes exceeds the token budget."""
    rng = np.random.default_rng(seed)
    return lambda: "heads" if rng.random() > 0.15 else "heads and tails and heads and tails and so on and so on"


def test_masked_runaway_replies_give_their_groups_a_signal(build: Build) -> None:
    world = WorldConfig(OTHER, agent="bare", instructions=False)
    loop = build(loop_config(world=world, group_size=4, algorithm=PLAIN, train_on_truncated=False), runaway(0))
    take_step(loop, initial_state(loop))
    (line,) = loop.folder.read_metrics()
    groups: dict[str, list[str]] = {}
    for played in read_episodes(loop.folder.rollouts / "step-000001.jsonl"):
        groups.setdefault(played.task_id, []).append(played.stop)
    mixed = [stops for stops in groups.values() if {"length", "terminated"} <= {*stops}]
    assert mixed
    assert line["trained"] == sum(stop == "terminated" for stops in mixed for stop in stops)
    assert line["groups"]["ok"] >= len(mixed)
    assert line["advantage/mean_token"] > 0
    assert line["grad_norm"] > 0


def test_the_rollout_log_has_advantages_of_trained_episodes_only(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    world = WorldConfig(OTHER, agent="bare", instructions=False)
    config = loop_config(world=world, group_size=4, algorithm=PLAIN, train_on_truncated=False)
    loop = build(replace(config, rollouts=replace(config.rollouts, tokens=4)), runaway(0))
    collected = collect_rollouts(loop, initial_state(loop))
    recorded: dict[tuple[int, int], Any] = {}

    def record(step: int, own: Any, groups: Any, advantages: dict[tuple[int, int], Any]) -> None:
        recorded.update(advantages)

    monkeypatch.setattr(loop.rollout_logger, "record", record)
    update_on_rollouts(loop, 0, collected)
    trained = {
        (group.number, e.sample)
        for group in collected.own
        for e in group.episodes
        if group.treatment == "keep" and e.stop != "length"
    }
    assert recorded.keys() == trained


@pytest.mark.parametrize(("truncation", "trained"), [("reward", 6), ("mask", 0)])
def test_truncation_mask_excludes_truncated_episodes(build: Build, truncation: Any, trained: int) -> None:
    algorithm = replace(ReinforcePP, kl=replace(ReinforcePP.kl, where="off"))
    config = loop_config(tasks_per_step=2, algorithm=algorithm, horizon=FixedHorizon(2), truncation=truncation)
    loop = build(config, random_guesses())
    take_step(loop, initial_state(loop))
    (line,) = loop.folder.read_metrics()
    assert line["stops"] == {"truncated": 6}
    assert line["trained"] == trained
    assert ("grad_norm" in line) == (trained > 0)


def test_masked_episodes_belong_to_their_group() -> None:
    episodes = [
        episode_with_samples([None], [1.0]),
        episode_with_samples([None], [0.0], stop="truncated"),
        episode_with_samples([None], [0.0], stop="length"),
    ]
    for config in (RLConfig(), RLConfig(truncation="mask"), RLConfig(train_on_truncated=False, truncation="mask")):
        group = EpisodeGroup.from_episodes(episodes, GRPO, masked=config.masked)
        assert (group.kind, len(group.usable), group.masked) == ("ok", 3, config.masked)
    assert RLConfig(train_on_truncated=False, truncation="mask").masked == {"length", "truncated"}
