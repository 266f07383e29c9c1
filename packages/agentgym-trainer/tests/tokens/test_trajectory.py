from __future__ import annotations

from dataclasses import replace

import pytest
from agentgym_envs import Sample
from agentgym_trainer.tokens.trajectory import Segment, trajectory
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_learner import episode

pytestmark = pytest.mark.quick

ids = st.lists(st.integers(0, 999), max_size=6).map(tuple)


@st.composite
def samples(draw: st.DrawFn) -> list[Sample]:
    turns = draw(st.integers(1, 5))
    return [
        Sample(
            prompt=draw(ids),
            ids=(said := draw(ids)),
            logprobs=tuple(draw(st.floats(-9, 0)) for _ in said),
            fresh=turn == 0 or draw(st.booleans()),
        )
        for turn in range(turns)
    ]


@settings(max_examples=40)
@given(samples())
def test_the_ids_are_prompts_and_samples_in_order(played: list[Sample]) -> None:
    segments = trajectory(episode(played)).segments
    assert len(segments) == sum(sample.fresh for sample in played)
    assert [i for s in segments for i in s.ids] == [i for p in played for i in (*p.prompt, *p.ids)]
    said = [
        (i, logprob, turn)
        for s in segments
        for i, yes, logprob, turn in zip(s.ids, s.loss_mask, s.logprobs, s.turns, strict=True)
        if yes
    ]
    assert said == [
        (i, logprob, turn)
        for turn, p in enumerate(played)
        for i, logprob in zip(p.ids, p.logprobs, strict=True)
    ]  # fmt: skip
    for s in segments:
        assert all(turn == -1 and p == 0 for y, turn, p in zip(s.loss_mask, s.turns, s.logprobs, strict=True) if not y)


def test_rewards_belong_to_turns_and_the_group_is_the_task() -> None:
    played = [Sample((1,), (2, 3), (-1.0, -1.0)), Sample((4,), (5,), (-1.0,), fresh=False)]
    made = trajectory(episode(played, [0.25, 0.5]))
    assert made.rewards == (0.25, 0.5)
    assert made.group == "coin/train/1"
    assert made.tokens == 5
    assert len(made.segments) == 1


@settings(max_examples=40)
@given(samples(), st.integers(0, 40))
def test_what_is_within_so_many_tokens_ends_with_a_turn_or_is_nothing(played: list[Sample], longest: int) -> None:
    for whole in trajectory(episode(played)).segments:
        part = whole.within(longest)
        size = len(part.ids)
        assert size <= longest
        assert part == Segment(whole.ids[:size], whole.loss_mask[:size], whole.logprobs[:size], whole.turns[:size])
        ends = [whole.turns[i] != (*whole.turns, -1)[i + 1] for i in range(len(whole.ids))]
        fitting = [i + 1 for i, ends_here in enumerate(ends) if ends_here and whole.loss_mask[i] and i < longest]
        assert size == max(fitting, default=0)


def test_a_turn_that_is_not_to_be_learned_from_is_read_with_no_logprob_and_no_turn() -> None:
    made = episode([Sample((1,), (2, 3), (-1.0, -2.0)), Sample((4,), (5,), (-3.0,), fresh=False)])
    first, second = made.turns
    (segment,) = trajectory(replace(made, turns=(replace(first, loss=False), second))).segments
    assert segment == Segment((1, 2, 3, 4, 5), (False,) * 4 + (True,), (0.0,) * 4 + (-3.0,), (-1,) * 4 + (1,))


def test_a_failed_episode_never_trains() -> None:
    with pytest.raises(ValueError, match=r"failed \(it broke\); a failed episode never trains"):
        trajectory(episode([Sample((1,), (2,), (-1.0,))], stop="failed"))


def test_replies_without_sampled_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="Turn 1 of coin/train/1 by test has no sampled ids; encode the episode first"):
        trajectory(episode([Sample((1,), (2,), (-1.0,)), None]))
