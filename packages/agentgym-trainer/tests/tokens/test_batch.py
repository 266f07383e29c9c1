from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from agentgym_trainer.tokens.batch import Batch, concatenate, make_batch, take
from agentgym_trainer.tokens.trajectory import Trajectory
from hypothesis import given, settings
from hypothesis import strategies as st
from random_trajectories import trajectories

pytestmark = pytest.mark.quick


@settings(max_examples=30)
@given(trajectories())
def test_scores_without_one_are_the_sum_of_the_rewards(sample: list[Trajectory]) -> None:
    given, summed = (make_batch([replace(each, score=score) for each in sample]).tokens for score in (0.25, None))
    assert given.score_E is not None
    assert summed.score_E is not None
    assert given.score_E.tolist() == [0.25] * len(sample)
    assert summed.score_E.tolist() == pytest.approx([sum(each.rewards) for each in sample])


@settings(max_examples=30)
@given(trajectories())
def test_batch_holds_all_tokens_of_all_segments_in_order(sample: list[Trajectory]) -> None:
    batch = make_batch(sample)
    segments = [segment for trajectory in sample for segment in trajectory.segments]
    assert batch.lengths == [len(segment.ids) for segment in segments]
    assert [batch.ids_S[a:b].tolist() for a, b in pairwise(batch.starts)] == [list(s.ids) for s in segments]
    assert [batch.position_S[a:b].tolist() for a, b in pairwise(batch.starts)] == [
        [*range(len(s.ids))] for s in segments
    ]
    assert batch.episodes == tuple(e for e, trajectory in enumerate(sample) for _ in trajectory.segments)
    assert batch.ids_S.dtype == batch.position_S.dtype == torch.long


@settings(max_examples=30)
@given(trajectories())
def test_experience_holds_only_completion_tokens(sample: list[Trajectory]) -> None:
    batch = make_batch(sample)
    token_batch = batch.tokens
    expected = [
        (e, turn, logprob, token)
        for e, trajectory in enumerate(sample)
        for s in trajectory.segments
        for token, in_loss, logprob, turn in zip(s.ids, s.loss_mask, s.logprobs, s.turns, strict=True)
        if in_loss
    ]
    found = zip(
        token_batch.episode_N.tolist(),
        token_batch.turn_N.tolist(),
        token_batch.rollout_logprobs_N.tolist(),
        batch.ids_S[batch.completion_index_N].tolist(),
        strict=True,
    )
    assert list(found) == expected
    per_segment = [sum(s.loss_mask) for trajectory in sample for s in trajectory.segments]
    assert [b - a for a, b in pairwise(batch.completion_starts)] == per_segment
    assert token_batch.old_or_rollout_logprobs_N is token_batch.rollout_logprobs_N


@settings(max_examples=30)
@given(trajectories())
def test_rewards_states_and_groups_are_by_episode_and_turn(sample: list[Trajectory]) -> None:
    token_batch = make_batch(sample).tokens
    longest = max((len(t.rewards) for t in sample), default=0)
    assert (
        token_batch.rewards_EK.shape
        == token_batch.played_EK.shape
        == token_batch.state_EK.shape
        == (len(sample), longest)
    )
    state_of: dict[int, str] = {}
    observation_of: dict[int, tuple[str, str]] = {}
    assert token_batch.observation_EK is not None
    assert token_batch.loss_mask_E is not None
    for e, trajectory in enumerate(sample):
        k = len(trajectory.rewards)
        assert token_batch.rewards_EK[e, :k].tolist() == list(trajectory.rewards)
        assert token_batch.played_EK[e].tolist() == [True] * k + [False] * (longest - k)
        assert not token_batch.rewards_EK[e, k:].any()
        assert (token_batch.state_EK[e, k:] == -1).all()
        for index, state in zip(token_batch.state_EK[e, :k].tolist(), trajectory.states, strict=True):
            assert state_of.setdefault(index, state) == state
        assert (token_batch.observation_EK[e, k:] == -1).all()
        for index, observation in zip(token_batch.observation_EK[e, :k].tolist(), trajectory.observations, strict=True):
            assert observation_of.setdefault(index, observation) == observation
        assert token_batch.loss_mask_E[e].item() == trajectory.in_loss
        same_group = [other.group == trajectory.group for other in sample]
        assert (token_batch.group_E == token_batch.group_E[e]).tolist() == same_group
    assert len(set(state_of.values())) == len(state_of)
    assert len(set(observation_of.values())) == len(observation_of)


@settings(max_examples=30)
@given(trajectories())
def test_to_moves_all_tensors(sample: list[Trajectory]) -> None:
    batch = make_batch(sample)
    moved = batch.to(torch.device("meta"))
    tensors: list[Any] = [getattr(moved, name) for name in ("ids_S", "position_S", "completion_index_N")]
    tensors += [getattr(moved.tokens, field.name) for field in fields(moved.tokens)]
    assert {tensor.device.type for tensor in tensors if tensor is not None} == {"meta"}
    assert (moved.starts, moved.completion_starts, moved.episodes) == (
        batch.starts,
        batch.completion_starts,
        batch.episodes,
    )
    assert moved.tokens.old_logprobs_N is None


def _described(batch: Batch) -> dict[str, Any]:
    """Return a batch as lists, with groups, states and observations in the order in which they occur."""
    tensors = {name: getattr(batch, name) for name in ("ids_S", "position_S", "completion_index_N")}
    described = {name: tensor.tolist() for name, tensor in (tensors | batch.tokens.tensors).items()}
    for name in ("group_E", "state_EK", "observation_EK"):
        tensor = tensors.get(name, batch.tokens.tensors[name])
        # Indices of states and observations only have a meaning within a group.
        keys = [
            (group if name != "group_E" else 0, index)
            for group, row in zip(batch.tokens.group_E.tolist(), tensor.tolist(), strict=True)
            for index in (row if isinstance(row, list) else [row])
        ]
        numbers: dict[Any, int] = {}
        described[name] = [-1 if key[1] < 0 else numbers.setdefault(key, len(numbers)) for key in keys]
    rest = (batch.starts, batch.completion_starts, batch.episodes)
    return {**described, "rest": rest, "width": batch.tokens.rewards_EK.shape[0]}


@settings(max_examples=50)
@given(trajectories(), st.data())
def test_taken_episodes_are_a_batch_of_these_episodes(sample: list[Trajectory], data: st.DataObject) -> None:
    chosen = [e for e in range(len(sample)) if data.draw(st.booleans())]
    batch = make_batch(sample)
    taken, index_N = take(batch, chosen)
    expected = make_batch([sample[e] for e in chosen])
    turns = expected.tokens.rewards_EK.shape[1]
    narrowed = {n: t[:, :turns] for n, t in taken.tokens.tensors.items() if n.endswith("_EK")}
    assert _described(replace(taken, tokens=replace(taken.tokens, **narrowed))) == _described(expected)
    assert torch.equal(batch.tokens.rollout_logprobs_N[index_N], expected.tokens.rollout_logprobs_N)


@settings(max_examples=50)
@given(st.lists(trajectories(most=3), min_size=1, max_size=3))
def test_concatenated_batches_are_a_batch_of_all_episodes(samples: list[list[Trajectory]]) -> None:
    samples = [[replace(t, group=f"{t.group}{number}") for t in sample] for number, sample in enumerate(samples)]
    joined = concatenate([make_batch(sample) for sample in samples])
    assert _described(joined) == _described(make_batch([t for sample in samples for t in sample]))
