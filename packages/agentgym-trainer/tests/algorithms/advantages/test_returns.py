"""Rewards at said tokens and turns: nothing lost, nothing where nobody spoke; sums over time and over processes."""

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
from token_batches import Play, Step, Token, alone, at_once, eighths, experience_of, penalty_of, plays
from toy_learner import episode

pytestmark = pytest.mark.quick

some = settings(max_examples=20)


def slow_token_rewards(play: Play) -> list[list[float]]:
    """Rewards of the said tokens of each turn, minus their penalties."""
    paid = [[-token.penalty for token in step.tokens] for step in play.steps]
    speaking = [k for k, step in enumerate(play.steps) if step.tokens]
    for k, step in enumerate(play.steps):
        if earlier := [j for j in speaking if j <= k]:
            paid[earlier[-1]][-1] += step.reward
        elif speaking:
            paid[speaking[0]][0] += step.reward
    return paid


@some
@given(plays())
def test_token_rewards_are_the_slow_twins(episodes: list[Play]) -> None:
    found = token_rewards(experience_of(episodes), penalty_of(episodes))
    assert found.dtype == torch.float64
    expected = [paid for play in episodes for turn in slow_token_rewards(play) for paid in turn]
    assert found.tolist() == pytest.approx(expected)


@some
@given(plays())
def test_what_was_paid_is_assigned(episodes: list[Play]) -> None:
    experience = experience_of(episodes)
    reward_N, turns = token_rewards(experience), turn_rewards(experience)
    for e, play in enumerate(episodes):
        paid = sum(step.reward for step in play.steps)
        assert turns.returns[e].item() == pytest.approx(paid)
        if play.said:
            assert reward_N[experience.episode_N == e].sum().item() == pytest.approx(paid)


@some
@given(plays())
def test_turn_rewards_are_the_sums_of_their_tokens(episodes: list[Play]) -> None:
    turns = turn_rewards(experience_of(episodes), penalty_of(episodes))
    for e, play in enumerate(episodes):
        expected = [sum(paid) for paid in slow_token_rewards(play)]
        if not play.said:
            expected = [step.reward for step in play.steps]
        assert turns.reward_EK[e, : len(expected)].tolist() == pytest.approx(expected)
        assert not turns.reward_EK[e, len(expected) :].any()
        assert turns.said_EK[e].nonzero().flatten().tolist() == [k for k, step in enumerate(play.steps) if step.tokens]


@some
@given(plays(min_size=1), st.floats(-1e3, 1e3))
def test_rewards_behind_the_last_turn_are_nobodys(episodes: list[Play], noise: float) -> None:
    experience = experience_of(episodes)
    before = token_rewards(experience), turn_rewards(experience).reward_EK
    experience.rewards_EK[~experience.played_EK] = noise
    assert torch.equal(token_rewards(experience), before[0])
    assert torch.equal(turn_rewards(experience).reward_EK, before[1])


def test_a_terminal_reward_reaches_the_last_said_token_of_an_episode_that_ends_in_an_observation() -> None:
    spoke = Sample(prompt=(3, 4), ids=(5, 6), logprobs=(-1.0, -1.0), fresh=True, version=0)
    saw_only = Sample(prompt=(7, 8, 9), ids=(), logprobs=(), fresh=False, version=0)
    batch = make_batch([trajectory(episode([spoke, saw_only], [0.0, 1.0]))])
    assert batch.ids_S.tolist() == [3, 4, 5, 6, 7, 8, 9]
    assert token_rewards(batch.experience).tolist() == [0.0, 1.0]


@some
@given(st.lists(st.tuples(st.integers(0, 3), eighths), max_size=12), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_discounted_sums_are_the_slow_twins(pairs: list[tuple[int, float]], gamma: float) -> None:
    pairs.sort(key=lambda pair: pair[0])
    values = torch.tensor([value for _, value in pairs], dtype=torch.float64)
    before = values.clone()
    found = discounted(values, torch.tensor([e for e, _ in pairs], dtype=torch.long), gamma)
    assert torch.equal(values, before)
    for i, (own, _) in enumerate(pairs):
        ahead = [value for e, value in pairs[i:] if e == own]
        assert found[i].item() == pytest.approx(sum(gamma**n * value for n, value in enumerate(ahead)))


def test_discounted_sums_over_a_long_episode_lose_no_digits() -> None:
    found = discounted(torch.full((30_000,), 0.1, dtype=torch.float64), torch.zeros(30_000), 0.999)
    assert found[0].item() == pytest.approx(0.1 * (1 - 0.999**30_000) / (1 - 0.999), rel=1e-12)


@some
@given(st.lists(eighths, min_size=2), st.integers(0, 100))
def test_normalised_over_two_processes_is_normalised_over_one(values: list[float], cut: int) -> None:
    whole = torch.tensor(values, dtype=torch.float64)
    expected = normalised(whole, alone)
    spread = statistics.pstdev(values)
    mean = statistics.fmean(values)
    slow = [(value - mean) / spread if spread else 0.0 for value in values]
    assert expected.tolist() == pytest.approx(slow, abs=1e-12)
    halves = whole[: cut % len(values)], whole[cut % len(values) :]
    found = at_once(lambda rank, total: normalised(halves[rank], total))
    torch.testing.assert_close(torch.cat(found), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("value", [0.1, 1 / 3, -1e4 / 7])
def test_what_differs_by_rounding_alone_is_normalised_to_nothing(value: float) -> None:
    steps = torch.arange(5, dtype=torch.float64)
    noisy = value + steps * abs(value) * torch.finfo(torch.float32).eps / 4
    assert noisy.unique().numel() == 5
    assert not normalised(noisy, alone).any()
    assert normalised(torch.zeros(0, dtype=torch.float64), alone).numel() == 0
    assert math.isfinite(normalised(noisy[:1], alone).item())


def test_a_mute_episode_counts_in_its_group_all_the_same() -> None:
    mute, spoke = Play(0, [Step(reward=1.0, tokens=[])]), Play(0, [Step(reward=0.0, tokens=[Token(), Token()])])
    experience = experience_of([mute, spoke])
    assert token_rewards(experience).tolist() == [0.0, 0.0]
    assert turn_rewards(experience).returns.tolist() == [1.0, 0.0]
