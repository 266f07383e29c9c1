from __future__ import annotations

from dataclasses import fields
from itertools import pairwise
from typing import Any

import pytest
import torch
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.trajectory import Trajectory
from hypothesis import given, settings
from random_trajectories import trajectories

pytestmark = pytest.mark.quick


@settings(max_examples=30)
@given(trajectories())
def test_a_batch_holds_every_token_of_every_segment_once_and_in_order(made: list[Trajectory]) -> None:
    batch = make_batch(made)
    segments = [segment for trajectory in made for segment in trajectory.segments]
    assert batch.lengths == [len(segment.ids) for segment in segments]
    assert [batch.ids_S[a:b].tolist() for a, b in pairwise(batch.starts)] == [list(s.ids) for s in segments]
    assert [batch.position_S[a:b].tolist() for a, b in pairwise(batch.starts)] == [
        [*range(len(s.ids))] for s in segments
    ]
    assert batch.episodes == tuple(e for e, trajectory in enumerate(made) for _ in trajectory.segments)
    assert batch.ids_S.dtype == batch.position_S.dtype == torch.long


@settings(max_examples=30)
@given(trajectories())
def test_the_experience_holds_what_was_said_and_nothing_of_what_was_seen(made: list[Trajectory]) -> None:
    batch = make_batch(made)
    experience = batch.experience
    expected = [
        (e, turn, logprob, token)
        for e, trajectory in enumerate(made)
        for s in trajectory.segments
        for token, said, logprob, turn in zip(s.ids, s.loss_mask, s.logprobs, s.turns, strict=True)
        if said
    ]
    found = zip(
        experience.episode_N.tolist(),
        experience.turn_N.tolist(),
        experience.rollout_logprobs_N.tolist(),
        batch.ids_S[batch.completion_index_N].tolist(),
        strict=True,
    )
    assert list(found) == expected
    per_segment = [sum(s.loss_mask) for trajectory in made for s in trajectory.segments]
    assert [b - a for a, b in pairwise(batch.completion_starts)] == per_segment
    assert experience.old_or_rollout_logprobs_N is experience.rollout_logprobs_N


@settings(max_examples=30)
@given(trajectories())
def test_rewards_states_and_groups_stand_by_episode_and_turn(made: list[Trajectory]) -> None:
    experience = make_batch(made).experience
    longest = max((len(t.rewards) for t in made), default=0)
    assert (
        experience.rewards_EK.shape == experience.played_EK.shape == experience.state_EK.shape == (len(made), longest)
    )
    key_of: dict[int, str] = {}
    seen_of: dict[int, tuple[str, str]] = {}
    assert experience.observation_EK is not None
    assert experience.loss_mask_E is not None
    for e, trajectory in enumerate(made):
        k = len(trajectory.rewards)
        assert experience.rewards_EK[e, :k].tolist() == list(trajectory.rewards)
        assert experience.played_EK[e].tolist() == [True] * k + [False] * (longest - k)
        assert not experience.rewards_EK[e, k:].any()
        assert (experience.state_EK[e, k:] == -1).all()
        for number, key in zip(experience.state_EK[e, :k].tolist(), trajectory.states, strict=True):
            assert key_of.setdefault(number, key) == key
        assert (experience.observation_EK[e, k:] == -1).all()
        for number, seen in zip(experience.observation_EK[e, :k].tolist(), trajectory.observations, strict=True):
            assert seen_of.setdefault(number, seen) == seen
        assert experience.loss_mask_E[e].item() == trajectory.in_loss
        same = [other.group == trajectory.group for other in made]
        assert (experience.group_E == experience.group_E[e]).tolist() == same
    assert len(set(key_of.values())) == len(key_of)
    assert len(set(seen_of.values())) == len(seen_of)


@settings(max_examples=30)
@given(trajectories())
def test_a_batch_moves_as_a_whole(made: list[Trajectory]) -> None:
    batch = make_batch(made)
    moved = batch.to(torch.device("meta"))
    tensors: list[Any] = [getattr(moved, name) for name in ("ids_S", "position_S", "completion_index_N")]
    tensors += [getattr(moved.experience, field.name) for field in fields(moved.experience)]
    assert {tensor.device.type for tensor in tensors if tensor is not None} == {"meta"}
    assert (moved.starts, moved.completion_starts, moved.episodes) == (
        batch.starts,
        batch.completion_starts,
        batch.episodes,
    )
    assert moved.experience.old_logprobs_N is None
