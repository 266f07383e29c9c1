"""Tests of token and turn rewards, discounted sums, and normalization over processes."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from agentgym_envs import Sample
from agentgym_trainer.algorithms.advantages.returns import discounted, normalised, token_rewards, turn_rewards
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.trajectory import trajectory
from hypothesis import given, settings
from hypothesis import strategies as st
from token_batches import (
    EpisodeSketch,
    Step,
    Token,
    eighths,
    episode_sketches,
    penalty_of,
    run_processes,
    single_process_total,
    token_batch_of,
)
from toy_learner import episode_with_samples

pytestmark = pytest.mark.quick

few_examples = settings(max_examples=20)


def slow_token_rewards(play: EpisodeSketch) -> list[list[float]]:
    """Return the rewards of each turn's completion tokens, minus their penalties."""
    rewards = [[-token.penalty for token in step.tokens] for step in play.steps]
    turns_with_tokens = [k for k, step in enumerate(play.steps) if step.tokens]
    for k, step in enumerate(play.steps):
        if earlier := [j for j in turns_with_tokens if j <= k]:
            rewards[earlier[-1]][-1] += step.reward
        elif turns_with_tokens:
            rewards[turns_with_tokens[0]][0] += step.reward
    return rewards


@few_examples
@given(episode_sketches())
def test_token_rewards_match_the_slow_reference(episodes: list[EpisodeSketch]) -> None:
    rewards = token_rewards(token_batch_of(episodes), penalty_of(episodes))
    assert rewards.dtype == torch.float64
    expected = [reward for play in episodes for turn in slow_token_rewards(play) for reward in turn]
    assert rewards.tolist() == pytest.approx(expected)


@few_examples
@given(episode_sketches())
def test_all_rewards_are_assigned(episodes: list[EpisodeSketch]) -> None:
    token_batch = token_batch_of(episodes)
    reward_N, turns = token_rewards(token_batch), turn_rewards(token_batch)
    for e, play in enumerate(episodes):
        episode_return = sum(step.reward for step in play.steps)
        assert turns.returns[e].item() == pytest.approx(episode_return)
        if play.completion_tokens:
            assert reward_N[token_batch.episode_N == e].sum().item() == pytest.approx(episode_return)


@few_examples
@given(episode_sketches())
def test_turn_rewards_are_sums_of_token_rewards(episodes: list[EpisodeSketch]) -> None:
    turns = turn_rewards(token_batch_of(episodes), penalty_of(episodes))
    for e, play in enumerate(episodes):
        expected = [sum(rewards) for rewards in slow_token_rewards(play)]
        if not play.completion_tokens:
            expected = [step.reward for step in play.steps]
        assert turns.reward_EK[e, : len(expected)].tolist() == pytest.approx(expected)
        assert not turns.reward_EK[e, len(expected) :].any()
        assert turns.completed_EK[e].nonzero().flatten().tolist() == [
            k for k, step in enumerate(play.steps) if step.tokens
        ]


@few_examples
@given(episode_sketches(min_size=1), st.floats(-1e3, 1e3))
def test_rewards_after_the_last_turn_are_ignored(episodes: list[EpisodeSketch], noise: float) -> None:
    token_batch = token_batch_of(episodes)
    before = token_rewards(token_batch), turn_rewards(token_batch).reward_EK
    token_batch.rewards_EK[~token_batch.played_EK] = noise
    assert torch.equal(token_rewards(token_batch), before[0])
    assert torch.equal(turn_rewards(token_batch).reward_EK, before[1])


def test_terminal_reward_goes_to_the_last_completion_token() -> None:
    reply = Sample(prompt=(3, 4), ids=(5, 6), logprobs=(-1.0, -1.0), fresh=True, version=0)
    empty_reply = Sample(prompt=(7, 8, 9), ids=(), logprobs=(), fresh=False, version=0)
    batch = make_batch([trajectory(episode_with_samples([reply, empty_reply], [0.0, 1.0]))])
    assert batch.ids_S.tolist() == [3, 4, 5, 6, 7, 8, 9]
    assert token_rewards(batch.tokens).tolist() == [0.0, 1.0]


@few_examples
@given(st.lists(st.tuples(st.integers(0, 3), eighths), max_size=12), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_discounted_sums_match_the_slow_reference(pairs: list[tuple[int, float]], gamma: float) -> None:
    pairs.sort(key=lambda pair: pair[0])
    values = torch.tensor([value for _, value in pairs], dtype=torch.float64)
    before = values.clone()
    found = discounted(values, torch.tensor([e for e, _ in pairs], dtype=torch.long), gamma)
    assert torch.equal(values, before)
    for i, (current, _) in enumerate(pairs):
        remaining = [value for e, value in pairs[i:] if e == current]
        assert found[i].item() == pytest.approx(sum(gamma**n * value for n, value in enumerate(remaining)))


def test_discounted_sums_of_long_episodes_are_precise() -> None:
    found = discounted(torch.full((30_000,), 0.1, dtype=torch.float64), torch.zeros(30_000), 0.999)
    assert found[0].item() == pytest.approx(0.1 * (1 - 0.999**30_000) / (1 - 0.999), rel=1e-12)


@few_examples
@given(st.lists(eighths, min_size=2), st.integers(0, 100))
def test_two_processes_normalise_like_one(values: list[float], cut: int) -> None:
    all_values = torch.tensor(values, dtype=torch.float64)
    expected = normalised(all_values, single_process_total)
    std = statistics.pstdev(values)
    mean = statistics.fmean(values)
    slow = [(value - mean) / std if std else 0.0 for value in values]
    assert expected.tolist() == pytest.approx(slow, abs=1e-12)
    shares = all_values[: cut % len(values)], all_values[cut % len(values) :]
    found = run_processes(lambda rank, total: normalised(shares[rank], total))
    torch.testing.assert_close(torch.cat(found), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("value", [0.1, 1 / 3, -1e4 / 7])
def test_values_equal_up_to_rounding_are_normalised_to_zero(value: float) -> None:
    steps = torch.arange(5, dtype=torch.float64)
    noisy = value + steps * abs(value) * torch.finfo(torch.float32).eps / 4
    assert noisy.unique().numel() == 5
    assert not normalised(noisy, single_process_total).any()
    assert normalised(torch.zeros(0, dtype=torch.float64), single_process_total).numel() == 0
    assert math.isfinite(normalised(noisy[:1], single_process_total).item())


def test_episode_without_tokens_keeps_its_return() -> None:
    empty, other = (
        EpisodeSketch(0, [Step(reward=1.0, tokens=[])]),
        EpisodeSketch(0, [Step(reward=0.0, tokens=[Token(), Token()])]),
    )
    token_batch = token_batch_of([empty, other])
    assert token_rewards(token_batch).tolist() == [0.0, 0.0]
    assert turn_rewards(token_batch).returns.tolist() == [1.0, 0.0]
