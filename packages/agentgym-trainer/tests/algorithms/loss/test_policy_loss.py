"""Tests of the policy loss against a slow per-token implementation of the textbook formulas, with float64 autograd."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from agentgym_trainer.algorithms import (
    GAE,
    GSPO,
    KL,
    PPO,
    Algorithm,
    Clip,
    Correction,
    Critic,
    Imitation,
    MicroBatch,
    ModelOutputs,
)
from completion_tokens import CompletionToken, LossResult, algorithms, completion_tokens, loss_of, token_batch_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from textbook_loss import slow_correction, slow_kl, slow_ratio, slow_shares, textbook_loss
from token_batches import run_processes
from torch import Tensor


def assert_same(one: LossResult, other: LossResult) -> None:
    """Check that loss, metrics and gradients are equal."""
    assert one.loss.item() == pytest.approx(other.loss.item(), rel=1e-9, abs=1e-9)
    assert one.metrics == pytest.approx(other.metrics, rel=1e-9, abs=1e-9)
    for gradients, other_gradients in zip(one.gradients, other.gradients, strict=True):
        assert gradients == pytest.approx(other_gradients, rel=1e-9, abs=1e-9)


def is_differentiable(tokens: Sequence[CompletionToken], algorithm: Algorithm) -> bool:
    """Return False if a clipped value has the same error as the unclipped one, where any subgradient is correct."""
    for token in tokens:
        change = token.value - token.old_value
        clipped = token.old_value + min(max(change, -algorithm.critic.clip), algorithm.critic.clip)
        if (
            algorithm.critic.clip
            and abs(change) > algorithm.critic.clip
            and abs(clipped - token.target) == abs(token.value - token.target)
        ):
            return False
    return True


@settings(max_examples=40)
@given(completion_tokens(), algorithms)
def test_loss_and_gradients_match_the_textbook(tokens: list[CompletionToken], algorithm: Algorithm) -> None:
    assume(is_differentiable(tokens, algorithm))
    found = loss_of(tokens, algorithm)
    loss, gradients = textbook_loss(tokens, algorithm)
    assert found.loss.item() == pytest.approx(loss.item(), rel=1e-6, abs=1e-6)
    for actual, expected in zip(found.gradients, gradients, strict=True):
        assert actual == pytest.approx(expected, rel=1e-6, abs=1e-6)


@settings(max_examples=40)
@given(completion_tokens(), algorithms)
def test_metrics_are_token_means_for_any_aggregation(tokens: list[CompletionToken], algorithm: Algorithm) -> None:
    metrics = loss_of(tokens, algorithm).metrics
    ratios = [slow_ratio(t, torch.tensor(t.logp).double(), algorithm.ratio, tokens).item() for t in tokens]
    expected = {
        "ratio": statistics.fmean(ratios),
        "approx_kl": statistics.fmean(math.exp(t.logp - t.rollout) - 1 - (t.logp - t.rollout) for t in tokens),
        "entropy": statistics.fmean(t.entropy for t in tokens),
    }
    if algorithm.kl.where != "off":
        expected["ref_kl"] = statistics.fmean(slow_kl(t.logp, t.reference, algorithm.kl).item() for t in tokens)
    if algorithm.correction.level != "off":
        correction = algorithm.correction
        weights = [slow_correction(t, replace(correction, bound=1e9), tokens) for t in tokens]
        expected["rollout_logprob_gap"] = statistics.fmean(abs(t.old - t.rollout) for t in tokens)
        expected["correction"] = statistics.fmean(slow_correction(t, correction, tokens) for t in tokens)
        expected["corrected"] = statistics.fmean(weight > correction.bound for weight in weights)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-6, abs=1e-6)
    of_critic = {"value", "value_loss", "value_clipped"}
    shares = slow_shares(tokens, algorithm.aggregation.kind)
    expected["advantage/mean_token"] = sum(w * t.advantage for w, t in zip(shares, tokens, strict=True))
    assert metrics["advantage/mean_token"] == pytest.approx(expected["advantage/mean_token"], abs=1e-6)
    assert set(metrics) == {*expected, "clip_fraction", *of_critic}


@settings(max_examples=25)
@given(completion_tokens(), algorithms, st.data())
def test_micro_batching_and_order_do_not_change_the_loss(
    tokens: list[CompletionToken], algorithm: Algorithm, data: st.DataObject
) -> None:
    """Micro-batches hold whole episodes, or whole turns if the algorithm's unit is the segment."""
    keys = [(t.episode, 0 if algorithm.unit == "episode" else t.turn) for t in tokens]
    part_of = {key: data.draw(st.integers(0, 2)) for key in sorted(set(keys))}
    order = data.draw(st.permutations(range(len(tokens))))
    # One micro-batch is empty, as on a process that has no data left.
    parts = [[n for n in order if part_of[keys[n]] == part] for part in range(4)]
    assert_same(loss_of(tokens, algorithm), loss_of(tokens, algorithm, parts=parts))


@settings(max_examples=20)
@given(completion_tokens(), algorithms)
def test_losses_of_two_processes_sum_to_the_whole_loss(tokens: list[CompletionToken], algorithm: Algorithm) -> None:
    shares = [[t for t in tokens if t.episode == 0], [t for t in tokens if t.episode > 0]]
    first, second = run_processes(lambda rank, total: loss_of(shares[rank], algorithm, total=total))
    single = loss_of(tokens, algorithm)
    assert first.loss.item() + second.loss.item() == pytest.approx(single.loss.item(), rel=1e-6, abs=1e-6)
    summed = {name: first.metrics[name] + second.metrics[name] for name in single.metrics}
    assert summed == pytest.approx(single.metrics, rel=1e-6, abs=1e-6)
    for of_first, of_second, expected in zip(first.gradients, second.gradients, single.gradients, strict=True):
        assert of_first + of_second == pytest.approx(expected, rel=1e-6, abs=1e-6)


@settings(max_examples=10)
@given(algorithms)
def test_loss_without_tokens_is_zero_and_differentiable(algorithm: Algorithm) -> None:
    found = loss_of([], algorithm, parts=[[]])
    assert found.gradients == [[], [], []]
    assert found.loss.item() == 0
    assert set(found.metrics.values()) <= {0.0}


@settings(max_examples=40)
@given(st.sampled_from([-1e4, -40.0, 40.0, 1e4]), st.sampled_from([-1.0, 0.0, 1.0]), algorithms)
def test_overflowing_log_ratios_keep_loss_and_gradients_finite(
    offset: float, advantage: float, algorithm: Algorithm
) -> None:
    names = ("logp", "old", "rollout", "reference")
    tokens = [replace(CompletionToken(0, 0, advantage=advantage), **{name: -2 + offset}) for name in names]
    found = loss_of(tokens, algorithm)
    assert found.loss.float().isfinite()
    assert all(math.isfinite(value) for value in found.metrics.values())
    assert all(math.isfinite(value) for column in found.gradients for value in column)


def test_token_masked_by_the_correction_has_no_gradient() -> None:
    tokens = [CompletionToken(0, 0, advantage=2.0), CompletionToken(1, 0, logp=-500.0, advantage=-3.0)]
    algorithm = replace(PPO, correction=Correction(level="token", mode="mask"))
    tokens[1].rollout, tokens[1].old = -90.0, -2.0
    logp_gradient = loss_of(tokens, algorithm).gradients[0]
    assert logp_gradient[0] == pytest.approx(-1.0)
    assert logp_gradient[1] == 0


def gspo_by_hand(logps: Sequence[Tensor], tokens: Sequence[CompletionToken], clip: Clip) -> Tensor:
    """Eqs. 5 to 7: the mean over sequences of min(s A, clip(s) A), without a stop-gradient in s."""
    gains = []
    for episode in sorted({t.episode for t in tokens}):
        terms = [(logp - t.old, t.advantage) for logp, t in zip(logps, tokens, strict=True) if t.episode == episode]
        s = torch.exp(torch.stack([log_ratio for log_ratio, _ in terms]).mean())
        gains.append(torch.minimum(s * terms[0][1], s.clamp(1 - clip.low, 1 + clip.high) * terms[0][1]))
    return -torch.stack(gains).mean()


@settings(max_examples=25)
@given(completion_tokens(), st.sampled_from([3e-4, 0.3]))
def test_sequence_ratio_is_gspo_if_advantages_are_per_episode(tokens: list[CompletionToken], width: float) -> None:
    tokens = [replace(t, advantage=[1.0, -0.5, 0.25][t.episode]) for t in tokens]
    algorithm = replace(GSPO, clip=replace(GSPO.clip, low=width, high=width), correction=Correction())
    logps = [torch.tensor(t.logp, dtype=torch.float64, requires_grad=True) for t in tokens]
    expected = gspo_by_hand(logps, tokens, algorithm.clip)
    expected.backward()
    found = loss_of(tokens, algorithm)
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-6)
    gradients = [0.0 if logp.grad is None else logp.grad.item() for logp in logps]
    assert found.gradients[0] == pytest.approx(gradients, rel=1e-6, abs=1e-6)


def test_turn_ratio_is_the_geometric_mean_over_the_turn() -> None:
    tokens = [
        CompletionToken(0, 0, logp=-0.5),
        CompletionToken(0, 0, logp=-0.1),
        CompletionToken(0, 1, logp=-3.0),
        CompletionToken(1, 0, logp=-1.0),
    ]
    turns = [math.exp((0.5 + 0.9) / 2), math.exp(-2.0), 1.0]
    algorithm = Algorithm(advantages=GAE(), ratio="turn", clip=Clip(kind="none"))
    found = loss_of(tokens, algorithm)
    assert found.metrics["ratio"] == pytest.approx((2 * turns[0] + turns[1] + turns[2]) / 4)
    assert found.gradients[0] == pytest.approx([-turns[0] / 4, -turns[0] / 4, -turns[1] / 4, -turns[2] / 4], rel=1e-6)


def test_gradients_of_each_kind_of_clipping() -> None:
    """Ratios of 2 and 1/2, with positive and negative advantages."""
    tokens = [
        CompletionToken(0, 0, logp=-1 + log_ratio, advantage=advantage)
        for log_ratio, advantage in itertools.product([math.log(2), -math.log(2)], [1.0, -1.0])
    ]

    def clip_gradients(clip: Clip) -> tuple[list[float], float]:
        found = loss_of(tokens, Algorithm(advantages=GAE(), clip=clip))
        return [round(-4 * gradient, 6) for gradient in found.gradients[0]], found.metrics["clip_fraction"]

    assert clip_gradients(Clip(kind="none")) == ([2.0, -2.0, 0.5, -0.5], 0.0)
    assert clip_gradients(Clip(kind="ppo")) == ([0.0, -2.0, 0.5, 0.0], 0.5)
    assert clip_gradients(Clip(kind="ppo", dual=1.5)) == ([0.0, 0.0, 0.5, 0.0], 0.75)
    assert clip_gradients(Clip(kind="ppo", high=1.5)) == ([2.0, -2.0, 0.5, 0.0], 0.25)
    assert clip_gradients(Clip(kind="cispo")) == ([1.2, -1.2, 0.8, -0.8], 1.0)
    assert clip_gradients(Clip(kind="cispo", low=1.0)) == ([1.2, -1.2, 0.5, -0.5], 0.5)


def test_correction_is_independent_of_the_current_weights() -> None:
    tokens = [
        CompletionToken(0, 0, old=-1.0, rollout=-2.0),
        CompletionToken(0, 1, old=-1.0, rollout=-1.5),
        CompletionToken(1, 0, old=-1.5),
    ]

    def weights(level: Any, mode: Any) -> list[float]:
        algorithm = Algorithm(advantages=GAE(), clip=Clip(kind="none"), correction=Correction(level, mode, 2.0))
        before, after = (loss_of([replace(t, logp=t.old + change) for t in tokens], algorithm) for change in (0.0, 0.1))
        assert before.metrics["correction"] == after.metrics["correction"]
        return [-3 * gradient for gradient in before.gradients[0]]

    half = math.exp(-0.5)
    assert weights("token", "truncate") == pytest.approx([2.0, math.exp(0.5), half], rel=1e-6)
    assert weights("token", "mask") == pytest.approx([0.0, math.exp(0.5), half], rel=1e-6)
    assert weights("sequence", "truncate") == pytest.approx([2.0, 2.0, half], rel=1e-6)
    assert weights("sequence", "mask") == pytest.approx([0.0, 0.0, half], rel=1e-6)


def test_correction_does_not_affect_kl_and_entropy() -> None:
    masked = Correction(level="token", mode="mask", bound=0.5)
    algorithm = Algorithm(advantages=GAE(), kl=KL("loss", "k2", 0.1), entropy=0.01, correction=masked)
    logp, entropy, _ = loss_of([CompletionToken(0, 0, reference=-3.0)], algorithm).gradients
    assert logp == pytest.approx([0.1 * 2.0])
    assert entropy == pytest.approx([-0.01])


def test_k3_gradient_never_points_away_from_the_reference() -> None:
    for logp in (-15.0, -21.5, -30.0, -1e5):
        found = loss_of(
            [CompletionToken(0, 0, logp=logp, advantage=0.0)], Algorithm(advantages=GAE(), kl=KL("loss", "k3", 1.0))
        )
        assert found.gradients[0][0] <= 0


def test_clamped_k3_has_no_gradient_beyond_the_clamp() -> None:
    """Estimates and gradients at some distances below the reference (nats), with and without the clamp."""

    def estimate_and_gradient(nats: float, clamp: float) -> tuple[float, float]:
        algorithm = Algorithm(advantages=GAE(), kl=KL("loss", "k3", 1.0, clamp))
        found = loss_of([CompletionToken(0, 0, logp=-1 - nats, advantage=0.0)], algorithm)
        return found.metrics["ref_kl"], -found.gradients[0][0]

    for nats in (-10.0, 0.5, 2.5):
        assert (
            estimate_and_gradient(nats, 10.0)
            == estimate_and_gradient(nats, 0.0)
            == pytest.approx((math.exp(nats) - 1 - nats, math.exp(nats) - 1))
        )
    for nats in (-12.0, 2.7, 10.0):
        assert estimate_and_gradient(nats, 10.0) == (10.0, 0.0)
    assert estimate_and_gradient(10.0, 0.0)[1] == pytest.approx(22025.5, abs=0.1)


def test_clamp_affects_only_k3_and_also_kl_in_the_reward() -> None:
    token_batch = token_batch_of([CompletionToken(0, 0, old=-9.0, reference=-1.0)])
    for estimator, penalty in (("k1", -8.0), ("k2", 32.0), ("k3", 10.0)):
        found = KL("reward", estimator, 0.5, 10.0).reward_penalty(token_batch)
        assert found is not None
        assert found.tolist() == [0.5 * penalty]


def test_missing_reference_or_critic_raises_a_helpful_error() -> None:
    index, one = torch.zeros(1, dtype=torch.long), torch.ones(1)
    micro_batch = MicroBatch(index, index, -one, -one, one, one, share=torch.tensor(1.0))
    outputs = ModelOutputs(-one, one)
    with pytest.raises(ValueError, match=r"reference model"):
        Algorithm(kl=KL("loss")).loss(outputs, micro_batch)
    with pytest.raises(ValueError, match=r"critic to 'head' or 'separate'"):
        PPO.loss(outputs, replace(micro_batch, values_M=one, value_targets_M=one, critic_weight_M=one))


@settings(max_examples=20)
@given(completion_tokens())
def test_imitation_is_the_mean_negative_log_likelihood(tokens: list[CompletionToken]) -> None:
    found = loss_of([replace(t, advantage=1.0) for t in tokens], Imitation())
    assert found.loss.item() == pytest.approx(-statistics.fmean(t.logp for t in tokens), rel=1e-6)
    assert found.metrics == pytest.approx(
        {"nll": found.loss.item(), "entropy": statistics.fmean(t.entropy for t in tokens)}, rel=1e-6, abs=1e-6
    )
    assert found.gradients == [pytest.approx([-1 / len(tokens)] * len(tokens), rel=1e-6), *[[0.0] * len(tokens)] * 2]


@pytest.mark.parametrize("clip", [0.2, 0.0])
def test_small_value_changes_are_not_clipped_by_rounding(clip: float) -> None:
    generator = torch.Generator().manual_seed(0)
    before_M = torch.randn(1000, generator=generator) * 0.02
    value_M, target_M = torch.rand(2, 1000, generator=generator) * torch.tensor([0.1, 0.3])[:, None]
    zeros_M = torch.zeros(1000)
    micro_batch = MicroBatch(
        zeros_M, zeros_M, zeros_M, zeros_M, zeros_M, zeros_M, zeros_M,
        values_M=before_M, value_targets_M=target_M, critic_weight_M=torch.full((1000,), 1e-3),
    )  # fmt: skip
    _, metrics = Critic(clip=clip).loss(ModelOutputs(zeros_M, zeros_M, value_M), micro_batch)
    assert metrics["value_clipped"] == 0


def test_invalid_loss_settings_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"neither width may be negative"):
        Clip(low=-0.1)
    with pytest.raises(ValueError, match=r"above the upper clip 1 \+ 0.28; 3 is usual"):
        Clip(high=0.28, dual=1.2)
    with pytest.raises(ValueError, match=r"weights are positive"):
        Correction("token", "mask", 0.0)
    with pytest.raises(ValueError, match=r"weight of KL is -1"):
        KL("loss", weight=-1)
    with pytest.raises(ValueError, match=r"kl.clamp is -1; it is the largest estimate, 10 is usual and 0 turns it off"):
        KL("loss", clamp=-1)
    with pytest.raises(ValueError, match=r"its clip -0.2; both must be 0 or more"):
        Critic(clip=-0.2)
