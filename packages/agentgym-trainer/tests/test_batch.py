from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from agentgym_trainer.batch import Batch, Layout, make_batch
from agentgym_trainer.trajectory import Segment, Trajectory
from hypothesis import given
from hypothesis import strategies as st
from miniature import VOCAB, learner, some_trajectories

PAD = 0


@st.composite
def trajectories(draw: st.DrawFn) -> list[Trajectory]:
    made: list[Trajectory] = []
    for _ in range(draw(st.integers(1, 5))):
        turns = draw(st.integers(1, 4))
        segments: list[Segment] = []
        for _ in range(draw(st.integers(1, 2))):
            said = draw(st.lists(st.booleans(), min_size=1, max_size=9))
            segments.append(
                Segment(
                    ids=tuple(draw(st.integers(1, 99)) for _ in said),
                    said=tuple(said),
                    logprobs=tuple(-draw(st.integers(0, 9)) * 0.5 if yes else 0.0 for yes in said),
                    turns=tuple(draw(st.integers(0, turns - 1)) if yes else -1 for yes in said),
                )
            )
        rewards = tuple(draw(st.integers(0, 8)) / 8 for _ in range(turns))
        made.append(Trajectory(tuple(segments), rewards, draw(st.sampled_from("abc"))))
    return made


def _tokens(batch: Batch) -> dict[tuple[int, ...], list[tuple[Any, ...]]]:
    """What each segment of the batch holds, token by token, sorted by episode."""
    segments: dict[tuple[int, int], list[tuple[Any, ...]]] = {}
    for b, t in (batch.segment_BT >= 0).nonzero().tolist():
        columns = (batch.position_BT, batch.ids_BT, batch.said_BT, batch.logp_BT, batch.episode_BT, batch.turn_BT)
        segments.setdefault((b, int(batch.segment_BT[b, t])), []).append(tuple(c[b, t].item() for c in columns))
    return sorted(segments.values())  # type: ignore[return-value]


def _expected(made: list[Trajectory]) -> list[list[tuple[Any, ...]]]:
    return sorted(
        [
            (position, i, said, logprob, e, max(turn, 0))
            for position, (i, said, logprob, turn) in enumerate(zip(s.ids, s.said, s.logprobs, s.turns, strict=True))
        ]
        for e, trajectory in enumerate(made)
        for s in trajectory.segments
    )


@given(trajectories(), st.sampled_from(["pad", "pack"]), st.none() | st.integers(1, 40))
def test_both_layouts_hold_every_token_once(made: list[Trajectory], layout: Layout, row_tokens: int | None) -> None:
    batch = make_batch(made, pad_id=PAD, layout=layout, row_tokens=row_tokens)
    assert _tokens(batch) == _expected(made)
    empty = batch.segment_BT < 0
    assert (batch.ids_BT[empty] == PAD).all()
    assert not batch.said_BT[empty].any()
    assert batch.seen_tokens == sum(t.tokens for t in made)
    assert batch.said_tokens == sum(sum(s.said) for t in made for s in t.segments)
    assert batch.padding_share == pytest.approx(1 - batch.seen_tokens / batch.ids_BT.numel())
    longest = max(len(s.ids) for t in made for s in t.segments)
    assert batch.ids_BT.shape[1] <= max(longest, row_tokens or 0)
    # Padding stands behind everything else.
    assert ((batch.segment_BT[:, 1:] < 0) | (batch.segment_BT[:, :-1] >= 0)).all()


@given(trajectories(), st.sampled_from(["pad", "pack"]))
def test_rewards_and_groups_stand_by_episode_and_turn(made: list[Trajectory], layout: Layout) -> None:
    batch = make_batch(made, pad_id=PAD, layout=layout)
    for e, trajectory in enumerate(made):
        k = len(trajectory.rewards)
        assert batch.rewards_EK[e, :k].tolist() == list(trajectory.rewards)
        assert batch.played_EK[e].tolist() == [True] * k + [False] * (batch.played_EK.shape[1] - k)
        assert not batch.rewards_EK[e, k:].any()
        same = [other.group == trajectory.group for other in made]
        assert (batch.group_E == batch.group_E[e]).tolist() == same


@given(trajectories(), st.sampled_from(["pad", "pack"]), st.data())
def test_a_figure_per_turn_lands_on_the_said_tokens_of_that_turn_only(
    made: list[Trajectory], layout: Layout, data: st.DataObject
) -> None:
    batch = make_batch(made, pad_id=PAD, layout=layout)
    value_EK = torch.zeros_like(batch.rewards_EK)
    e = data.draw(st.integers(0, len(made) - 1))
    k = data.draw(st.integers(0, len(made[e].rewards) - 1))
    value_EK[e, k] = 2.5
    token_BT = batch.per_token(value_EK)
    expected = batch.said_BT & (batch.episode_BT == e) & (batch.turn_BT == k)
    assert (token_BT == expected * 2.5).all()
    assert expected.sum() == sum(turn == k for s in made[e].segments for turn in s.turns)


def test_packing_leaves_less_padding() -> None:
    made = some_trajectories(3, 12)
    pad, pack = (make_batch(made, pad_id=PAD, layout=layout) for layout in ("pad", "pack"))
    assert pack.padding_share < pad.padding_share
    assert pack.attention_mask() is not None
    assert pad.attention_mask() is None


def test_choosing_rows_drops_columns_of_padding_only() -> None:
    batch = make_batch(some_trajectories(3), pad_id=PAD, layout="pad")
    shortest = int((batch.segment_BT >= 0).sum(1).argmin())
    chosen = batch.rows(torch.tensor([shortest]))
    assert chosen.ids_BT.shape == (1, int((batch.segment_BT[shortest] >= 0).sum()))
    assert (chosen.ids_BT[0] == batch.ids_BT[shortest, : chosen.ids_BT.shape[1]]).all()
    assert chosen.rewards_EK is batch.rewards_EK


def test_a_neighbour_in_a_packed_row_cannot_be_seen(model: Any) -> None:
    made = some_trajectories(5)
    batch = make_batch(made, pad_id=PAD, layout="pack", row_tokens=64)
    assert batch.segment_BT.max() >= 2
    judge = learner(model)
    before, _ = judge.logprobs(model, batch, batch.said_BT)
    row = int(batch.segment_BT.max(1).values.argmax())
    changed = (batch.segment_BT == 1) & (torch.arange(len(batch.ids_BT)) == row)[:, None]
    assert changed.any()
    other = replace(batch, ids_BT=torch.where(changed, (batch.ids_BT + 101) % VOCAB, batch.ids_BT))
    after, _ = judge.logprobs(model, other, batch.said_BT)
    assert torch.equal(before[~changed], after[~changed]) or torch.allclose(
        before[~changed], after[~changed], atol=1e-6
    )
    assert not torch.allclose(before[changed & batch.said_BT], after[changed & batch.said_BT], atol=1e-3)


@pytest.mark.parametrize("layout", ["pad", "pack"])
def test_what_stands_in_padding_cannot_be_seen(model: Any, layout: Layout) -> None:
    batch = make_batch(some_trajectories(6), pad_id=PAD, layout=layout)
    empty = batch.segment_BT < 0
    assert empty.any()
    judge = learner(model)
    other = replace(batch, ids_BT=torch.where(empty, 77, batch.ids_BT))
    before, after = (judge.logprobs(model, b, batch.said_BT)[0] for b in (batch, other))
    torch.testing.assert_close(before, after, atol=1e-6, rtol=0)


def test_a_batch_needs_a_trajectory() -> None:
    with pytest.raises(ValueError, match="A batch needs at least one trajectory"):
        make_batch([], pad_id=PAD)
