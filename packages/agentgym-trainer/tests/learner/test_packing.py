from __future__ import annotations

from dataclasses import replace
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
from toy_learner import random_segment

pytestmark = pytest.mark.quick


@given(st.lists(st.integers(1, 40), max_size=40), st.integers(1, 60))
def test_bins_hold_every_item_once_and_cannot_be_merged(sizes: list[int], capacity: int) -> None:
    bins = first_fit_decreasing(sizes, capacity)
    assert sorted(item for chosen in bins for item in chosen) == list(range(len(sizes)))
    for chosen in bins:
        assert sum(sizes[i] for i in chosen) <= capacity or len(chosen) == 1
    loads = sorted(sum(sizes[i] for i in chosen) for chosen in bins)
    assert all(one + other > capacity for one, other in pairwise(loads))


def test_larger_items_are_placed_first_into_the_first_fitting_bin() -> None:
    assert first_fit_decreasing([2, 6, 5, 4, 3], 10) == [[1, 3], [2, 4, 0]]


@settings(max_examples=30)
@given(trajectories(), st.data(), st.integers(1, 50), st.sampled_from(["segment", "episode"]))
def test_packs_hold_the_chosen_tokens_in_full_segments(
    sample: list[Trajectory], data: st.DataObject, capacity: int, unit: Unit
) -> None:
    batch = make_batch(sample)
    chosen_N = torch.tensor([data.draw(st.booleans()) for _ in batch.completion_index_N], dtype=torch.bool)
    packs = make_packs(batch, chosen_N, capacity=capacity, unit=unit)
    index = torch.cat([pack.index_M for pack in packs]) if packs else torch.empty(0)
    assert sorted(index.tolist()) == chosen_N.nonzero()[:, 0].tolist()
    segments = {tuple(segment.ids): e for e, t in enumerate(sample) for segment in t.segments}
    for pack in packs:
        assert len(pack.index_M)
        assert (pack.target_M == batch.ids_S[batch.completion_index_N[pack.index_M]]).all()
        starts = np.cumsum([0, *pack.lengths]).tolist()
        place_F = torch.arange(len(pack.ids_T)) if pack.place_F is None else pack.place_F
        assert len(place_F) == starts[-1]
        assert place_F.unique().tolist() == list(range(len(pack.ids_T)))
        ids_F, position_F = pack.ids_T[place_F], pack.position_T[place_F]
        assert all(position_F[a:b].tolist() == list(range(b - a)) for a, b in pairwise(starts))
        assert all(tuple(ids_F[a:b].tolist()) in segments for a, b in pairwise(starts))
        # Each token is predicted from the one before it in a segment.
        followers = {(p, t) for a, b in pairwise(starts) for p, t in zip(place_F[a:b], ids_F[a + 1 : b], strict=False)}
        predicted = zip(pack.before_M.tolist(), pack.target_M.tolist(), strict=True)
        assert set(predicted) <= {(int(p), int(t)) for p, t in followers}
        episodes = batch.tokens.episode_N[pack.index_M].unique()
        assert len(pack.ids_T) <= capacity or len(episodes) == 1
        assert len(pack.ids_T) <= capacity or unit == "episode" or len(pack.lengths) == 1


@settings(max_examples=30)
@given(trajectories(), st.integers(1, 50))
def test_unit_episode_keeps_episodes_in_one_pack(sample: list[Trajectory], capacity: int) -> None:
    batch = make_batch(sample)
    packs = make_packs(
        batch, torch.ones_like(batch.completion_index_N, dtype=torch.bool), capacity=capacity, unit="episode"
    )
    episodes_by_pack = [episode for pack in packs for episode in batch.tokens.episode_N[pack.index_M].unique().tolist()]
    assert len(episodes_by_pack) == len(set(episodes_by_pack))


def _with_common_prompt(groups: int, group_size: int, prompt: int) -> list[Trajectory]:
    rng = np.random.default_rng(1)
    sample: list[Trajectory] = []
    for group in range(groups):
        first = rng.integers(3, 99, prompt).tolist()
        for _ in range(group_size):
            segment = random_segment([(prompt, 5), (7, 5)], rng)
            segment = replace(segment, ids=(*first, *segment.ids[prompt:]))
            sample.append(
                Trajectory(
                    (segment,), rewards=(0.0,) * 2, states=("",) * 2, observations=(("act", ""),) * 2, group=f"{group}"
                )
            )
    return sample


def test_episodes_of_a_group_share_the_tokens_of_their_prompt() -> None:
    batch = make_batch(_with_common_prompt(groups=3, group_size=4, prompt=30))
    all_N = torch.ones_like(batch.completion_index_N, dtype=torch.bool)
    # A group has 30 tokens in common, and each of its 4 episodes 17 of its own.
    assert [len(pack.ids_T) for pack in make_packs(batch, all_N, capacity=98)] == [98, 98, 98]
    assert sorted(len(pack.ids_T) for pack in make_packs(batch, all_N, capacity=64)) == [64] * 6
    assert sum(len(pack.ids_T) for pack in make_packs(batch, all_N, capacity=1)) == sum(batch.lengths)


def test_a_pack_that_only_fits_with_shared_tokens_shares_them() -> None:
    """However few they are: here 2 of 25."""
    rng = np.random.default_rng(0)
    texts = ("a", [*range(3, 13)]), ("a", [3, 4, 50, 51, 52]), ("b", [*range(60, 70)])
    sample = [
        Trajectory(
            (replace(random_segment([(len(ids) - 1, 1)], rng), ids=tuple(ids)),),
            rewards=(0.0,),
            states=("",),
            observations=(("act", ""),),
            group=group,
        )
        for group, ids in texts
    ]
    batch = make_batch(sample)
    packs = make_packs(batch, torch.ones_like(batch.completion_index_N, dtype=torch.bool), capacity=23)
    assert [len(pack.ids_T) for pack in packs] == [23]


def test_packing_ragged_episodes_needs_no_padding() -> None:
    rng = np.random.default_rng(0)
    turns = rng.integers(1, 21, 256)
    sample = [
        Trajectory(
            (random_segment([(40, 20)] * int(t), rng),),
            rewards=(0.0,) * int(t),
            states=("",) * int(t),
            observations=(("act", ""),) * int(t),
            group="g",
        )
        for t in turns
    ]
    batch = make_batch(sample)
    packs = make_packs(batch, torch.ones_like(batch.completion_index_N, dtype=torch.bool), capacity=8192)
    tokens = sum(batch.lengths)
    assert sum(len(pack.ids_T) for pack in packs) == tokens
    assert tokens / (8192 * len(packs)) > 0.95
    # The share of padding if all were padded to the longest sequence.
    assert 0.45 < 1 - tokens / (max(batch.lengths) * len(batch.lengths)) < 0.56


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 5), st.data())
def test_consecutive_episodes_are_spread_evenly_over_minibatches(
    episodes: int, requested: int, seed: int, data: st.DataObject
) -> None:
    parts = min(requested, episodes)
    parts_E = split_minibatches(episodes, parts, torch.Generator().manual_seed(seed))
    assert len(parts_E) == episodes
    sizes = torch.bincount(parts_E, minlength=parts)
    assert len(sizes) == parts
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1
    start = data.draw(st.integers(0, episodes - 1))
    end = data.draw(st.integers(start, episodes))
    counts = torch.bincount(parts_E[start:end], minlength=parts)
    assert counts.max() - counts.min() <= 2


@pytest.mark.parametrize("parts", [1, 4])
def test_minibatch_split_depends_only_on_the_generator(parts: int) -> None:
    one, same, other = (split_minibatches(40, parts, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert torch.equal(one, other) == (parts == 1)


def test_empty_pack_has_one_token_and_no_targets() -> None:
    pack = empty_pack(torch.device("cpu"))
    assert (len(pack.ids_T), pack.lengths) == (1, (1,))
    assert not len(pack.before_M) and not len(pack.target_M) and not len(pack.index_M)
