from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from agentgym_trainer.learner.packing import Unit, empty_pack, first_fit_decreasing, make_packs, split_minibatches
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.trajectory import Trajectory
from hypothesis import given, settings
from hypothesis import strategies as st
from random_trajectories import trajectories
from toy_learner import segment

pytestmark = pytest.mark.quick


@given(st.lists(st.integers(1, 40), max_size=40), st.integers(1, 60))
def test_bins_hold_every_item_once_and_no_two_of_them_fit_into_one(sizes: list[int], capacity: int) -> None:
    bins = first_fit_decreasing(sizes, capacity)
    assert sorted(item for chosen in bins for item in chosen) == list(range(len(sizes)))
    for chosen in bins:
        assert sum(sizes[i] for i in chosen) <= capacity or len(chosen) == 1
    loads = sorted(sum(sizes[i] for i in chosen) for chosen in bins)
    assert all(one + other > capacity for one, other in pairwise(loads))


def test_the_largest_go_first_each_into_the_first_bin_with_room() -> None:
    assert first_fit_decreasing([2, 6, 5, 4, 3], 10) == [[1, 3], [2, 4, 0]]


@settings(max_examples=30)
@given(trajectories(), st.data(), st.integers(1, 50), st.sampled_from(["segment", "episode"]))
def test_packs_hold_the_chosen_tokens_in_their_whole_segments(
    made: list[Trajectory], data: st.DataObject, capacity: int, unit: Unit
) -> None:
    batch = make_batch(made)
    chosen_N = torch.tensor([data.draw(st.booleans()) for _ in batch.completion_index_N], dtype=torch.bool)
    packs = make_packs(batch, chosen_N, capacity=capacity, unit=unit)
    index = torch.cat([pack.index_M for pack in packs]) if packs else torch.empty(0)
    assert sorted(index.tolist()) == chosen_N.nonzero()[:, 0].tolist()
    segments = {tuple(segment.ids): e for e, t in enumerate(made) for segment in t.segments}
    for pack in packs:
        assert len(pack.index_M)
        assert (pack.target_M == batch.ids_S[batch.completion_index_N[pack.index_M]]).all()
        assert (pack.target_M == pack.ids_T[pack.before_M + 1]).all()
        starts = np.cumsum([0, *pack.lengths]).tolist()
        assert starts[-1] == len(pack.ids_T)
        assert all(pack.position_T[a:b].tolist() == list(range(b - a)) for a, b in pairwise(starts))
        assert all(tuple(pack.ids_T[a:b].tolist()) in segments for a, b in pairwise(starts))
        # No token is predicted from a neighbour's last one.
        assert not set((pack.before_M + 1).tolist()) & set(starts)
        episodes = batch.experience.episode_N[pack.index_M].unique()
        assert len(pack.ids_T) <= capacity or len(episodes) == 1
        assert len(pack.ids_T) <= capacity or unit == "episode" or len(pack.lengths) == 1


@settings(max_examples=30)
@given(trajectories(), st.integers(1, 50))
def test_an_episode_can_be_kept_together(made: list[Trajectory], capacity: int) -> None:
    batch = make_batch(made)
    packs = make_packs(
        batch, torch.ones_like(batch.completion_index_N, dtype=torch.bool), capacity=capacity, unit="episode"
    )
    held_in = [episode for pack in packs for episode in batch.experience.episode_N[pack.index_M].unique().tolist()]
    assert len(held_in) == len(set(held_in))


def test_ragged_episodes_leave_no_padding_and_little_room() -> None:
    rng = np.random.default_rng(0)
    turns = rng.integers(1, 21, 256)
    made = [
        Trajectory(
            (segment([(40, 20)] * int(t), rng),),
            rewards=(0.0,) * int(t),
            states=("",) * int(t),
            observations=(("act", ""),) * int(t),
            group="g",
        )
        for t in turns
    ]
    batch = make_batch(made)
    packs = make_packs(batch, torch.ones_like(batch.completion_index_N, dtype=torch.bool), capacity=8192)
    tokens = sum(batch.lengths)
    assert sum(len(pack.ids_T) for pack in packs) == tokens
    assert tokens / (8192 * len(packs)) > 0.95
    # What padding to the longest of the batch would have cost.
    assert 0.45 < 1 - tokens / (max(batch.lengths) * len(batch.lengths)) < 0.56


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 5), st.data())
def test_whoever_holds_a_run_of_episodes_has_as_many_of_each_minibatch(
    episodes: int, wanted: int, seed: int, data: st.DataObject
) -> None:
    parts = min(wanted, episodes)
    dealt = split_minibatches(episodes, parts, torch.Generator().manual_seed(seed))
    assert len(dealt) == episodes
    sizes = torch.bincount(dealt, minlength=parts)
    assert len(sizes) == parts
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1
    start = data.draw(st.integers(0, episodes - 1))
    end = data.draw(st.integers(start, episodes))
    held = torch.bincount(dealt[start:end], minlength=parts)
    assert held.max() - held.min() <= 2


@pytest.mark.parametrize("parts", [1, 4])
def test_episodes_are_dealt_by_the_generator_alone(parts: int) -> None:
    one, same, other = (split_minibatches(40, parts, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert torch.equal(one, other) == (parts == 1)


def test_an_idle_pack_is_one_token_and_says_nothing() -> None:
    pack = empty_pack(torch.device("cpu"))
    assert (len(pack.ids_T), pack.lengths) == (1, (1,))
    assert not len(pack.before_M) and not len(pack.target_M) and not len(pack.index_M)
