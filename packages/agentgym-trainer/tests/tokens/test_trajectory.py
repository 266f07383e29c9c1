from __future__ import annotations

from dataclasses import replace

import pytest
from agentgym_envs import Sample
from agentgym_trainer.tokens.trajectory import Segment, trajectory
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_learner import episode_with_samples

pytestmark = pytest.mark.quick

ids = st.lists(st.integers(0, 999), max_size=6).map(tuple)


@st.composite
def samples(draw: st.DrawFn) -> list[Sample]:
    turns = draw(st.integers(1, 5))
    return [
        Sample(
            prompt=draw(ids),
            ids=(completion := draw(ids)),
            logprobs=tuple(draw(st.floats(-9, 0)) for _ in completion),
            fresh=turn == 0 or draw(st.booleans()),
        )
        for turn in range(turns)
    ]


@settings(max_examples=40)
@given(samples())
def test_ids_are_prompts_and_completions_in_order(drawn: list[Sample]) -> None:
    segments = trajectory(episode_with_samples(drawn)).segments
    assert len(segments) == sum(sample.fresh for sample in drawn)
    assert [i for s in segments for i in s.ids] == [i for p in drawn for i in (*p.prompt, *p.ids)]
    completion_tokens = [
        (i, logprob, turn)
        for s in segments
        for i, in_loss, logprob, turn in zip(s.ids, s.loss_mask, s.logprobs, s.turns, strict=True)
        if in_loss
    ]
    assert completion_tokens == [
        (i, logprob, turn)
        for turn, p in enumerate(drawn)
        for i, logprob in zip(p.ids, p.logprobs, strict=True)
    ]  # fmt: skip
    for s in segments:
        assert all(turn == -1 and p == 0 for m, turn, p in zip(s.loss_mask, s.turns, s.logprobs, strict=True) if not m)


def test_rewards_belong_to_turns_and_the_group_is_the_task() -> None:
    drawn = [Sample((1,), (2, 3), (-1.0, -1.0)), Sample((4,), (5,), (-1.0,), fresh=False)]
    result = trajectory(episode_with_samples(drawn, [0.25, 0.5]))
    assert result.rewards == (0.25, 0.5)
    assert result.group == "coin/train/1"
    assert result.tokens == 5
    assert len(result.segments) == 1


@settings(max_examples=40)
@given(samples(), st.integers(0, 40))
def test_within_keeps_full_turns_up_to_the_limit(drawn: list[Sample], longest: int) -> None:
    for full in trajectory(episode_with_samples(drawn)).segments:
        trimmed = full.within(longest)
        size = len(trimmed.ids)
        assert size <= longest
        assert trimmed == Segment(full.ids[:size], full.loss_mask[:size], full.logprobs[:size], full.turns[:size])
        ends = [full.turns[i] != (*full.turns, -1)[i + 1] for i in range(len(full.ids))]
        fitting = [i + 1 for i, ends_here in enumerate(ends) if ends_here and full.loss_mask[i] and i < longest]
        assert size == max(fitting, default=0)


def test_turn_without_loss_has_no_logprobs_and_no_turn_index() -> None:
    played = episode_with_samples([Sample((1,), (2, 3), (-1.0, -2.0)), Sample((4,), (5,), (-3.0,), fresh=False)])
    first, second = played.turns
    (segment,) = trajectory(replace(played, turns=(replace(first, loss=False), second))).segments
    assert segment == Segment((1, 2, 3, 4, 5), (False,) * 4 + (True,), (0.0,) * 4 + (-3.0,), (-1,) * 4 + (1,))


def test_failed_episode_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"failed \(it broke\); a failed episode never trains"):
        trajectory(episode_with_samples([Sample((1,), (2,), (-1.0,))], stop="failed"))


def test_replies_without_sampled_ids_are_rejected() -> None:
    with pytest.raises(ValueError, match="Turn 1 of coin/train/1 by test has no sampled ids; encode the episode first"):
        trajectory(episode_with_samples([Sample((1,), (2,), (-1.0,)), None]))
