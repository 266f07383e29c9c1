"""The loss against a slow twin: the textbook token by token, differentiated by autograd in float64."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
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
from completion_tokens import Found, Said, algorithms, loss_of, saids, seen_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from token_batches import at_once
from torch import Tensor


def span(token: Said, level: str, tokens: Sequence[Said]) -> list[Said]:
    """The tokens that share a ratio with this one."""
    return [
        other
        for other in tokens
        if (level == "token" and other is token)
        or (level == "turn" and (other.episode, other.turn) == (token.episode, token.turn))
        or (level == "sequence" and other.episode == token.episode)
    ]


def slow_correction(token: Said, knobs: Correction, tokens: Sequence[Said]) -> float:
    if knobs.level == "off":
        return 1.0
    weight = math.exp(sum(other.old - other.sampled for other in span(token, knobs.level, tokens)))
    return weight if weight <= knobs.bound else (knobs.bound if knobs.mode == "truncate" else 0.0)


def slow_ratio(token: Said, logp: Tensor, level: str, tokens: Sequence[Said]) -> Tensor:
    """The token's own, or the geometric mean with the gradient of GSPO's eq. 14."""
    if level == "token":
        return torch.exp(logp - token.old)
    mean = statistics.fmean(other.logp - other.old for other in span(token, level, tokens))
    return math.exp(mean) * torch.exp(logp - logp.detach())


def slow_gain(ratio: Tensor, logp: Tensor, advantage: float, knobs: Clip) -> Tensor:
    low, high = 1 - knobs.low, 1 + knobs.high
    if knobs.kind == "cispo":
        return min(max(ratio.item(), low), high) * advantage * logp
    gain = ratio * advantage
    if knobs.kind == "ppo":
        held = min(max(ratio.item(), low), high) * advantage
        gain = gain if gain.item() <= held else torch.tensor(held, dtype=torch.float64)
    if knobs.dual and advantage < 0 and gain.item() < knobs.dual * advantage:
        gain = torch.tensor(knobs.dual * advantage, dtype=torch.float64)
    return gain


def slow_kl(logp: Any, reference: float, knobs: KL) -> Tensor:
    apart = torch.as_tensor(logp, dtype=torch.float64) - reference
    if knobs.estimator == "k3":
        k3 = torch.exp(-apart) - 1 + apart
        return torch.tensor(knobs.clamp).double() if 0 < knobs.clamp < k3.item() else k3
    return {"k1": apart, "k2": apart**2 / 2}[knobs.estimator]


def slow_mean(losses: Sequence[tuple[Said, Tensor]], kind: str, length: int) -> Tensor:
    """Of the tokens' losses."""
    if kind == "token":
        return torch.stack([loss for _, loss in losses]).mean()
    by_episode = [
        torch.stack([loss for token, loss in losses if token.episode == episode])
        for episode in sorted({token.episode for token, _ in losses})
    ]
    if kind == "sequence":
        return torch.stack([loss.mean() for loss in by_episode]).mean()
    return torch.stack([loss.sum() / length for loss in by_episode]).mean()


def slow_shares(tokens: Sequence[Said], kind: str) -> list[float]:
    """Weight of each token in the loss; they sum to 1."""
    counts = Counter(token.episode for token in tokens)
    by_episode = kind == "sequence"
    return [1 / len(counts) / counts[t.episode] if by_episode else 1 / len(tokens) for t in tokens]


def slow_value_loss(token: Said, value: Tensor, clip: float) -> Tensor:
    error = (value - token.target) ** 2
    if not clip:
        return error
    held = (min(max(value.item(), token.before - clip), token.before + clip) - token.target) ** 2
    return error if error.item() >= held else torch.tensor(held, dtype=torch.float64)


def textbook(tokens: Sequence[Said], a: Algorithm) -> tuple[Tensor, list[list[float]]]:
    """The loss, and its gradients by log-probability, entropy and value of each token."""
    leaves = [
        [torch.tensor(getattr(token, name), dtype=torch.float64, requires_grad=True) for token in tokens]
        for name in ("logp", "entropy", "value")
    ]
    losses: list[tuple[Said, Tensor]] = []
    for token, logp, entropy in zip(tokens, *leaves[:2], strict=True):
        gain = slow_gain(slow_ratio(token, logp, a.ratio, tokens), logp, token.advantage, a.clip)
        objective = slow_correction(token, a.correction, tokens) * gain + a.entropy * entropy
        if a.kl.where == "loss":
            objective = objective - a.kl.weight * slow_kl(logp, token.reference, a.kl)
        losses.append((token, -objective))
    loss = slow_mean(losses, a.aggregation.kind, a.aggregation.length)
    errors = [
        slow_value_loss(token, value, a.critic.clip)
        for token, value in zip(tokens, leaves[2], strict=True)
        if token.valued
    ]
    if errors:
        loss = loss + a.critic.weight * torch.stack(errors).mean()
    loss.backward()
    return loss, [[0.0 if leaf.grad is None else leaf.grad.item() for leaf in column] for column in leaves]


def same(found: Found, other: Found) -> None:
    """Equal loss, metrics and gradients."""
    assert found.loss.item() == pytest.approx(other.loss.item(), rel=1e-9, abs=1e-9)
    assert found.metrics == pytest.approx(other.metrics, rel=1e-9, abs=1e-9)
    for own, others in zip(found.gradients, other.gradients, strict=True):
        assert own == pytest.approx(others, rel=1e-9, abs=1e-9)


def off_the_kink(tokens: Sequence[Said], a: Algorithm) -> bool:
    """No value stands where clipping begins or both errors are the same: there any subgradient is right."""
    for token in tokens:
        moved = token.value - token.before
        held = token.before + min(max(moved, -a.critic.clip), a.critic.clip)
        if a.critic.clip and abs(moved) > a.critic.clip and abs(held - token.target) == abs(token.value - token.target):
            return False
    return True


@settings(max_examples=40)
@given(saids(), algorithms)
def test_loss_and_gradients_are_the_textbooks(tokens: list[Said], algorithm: Algorithm) -> None:
    assume(off_the_kink(tokens, algorithm))
    found = loss_of(tokens, algorithm)
    loss, gradients = textbook(tokens, algorithm)
    assert found.loss.item() == pytest.approx(loss.item(), rel=1e-6, abs=1e-6)
    for own, expected in zip(found.gradients, gradients, strict=True):
        assert own == pytest.approx(expected, rel=1e-6, abs=1e-6)


@settings(max_examples=40)
@given(saids(), algorithms)
def test_metrics_are_means_over_said_tokens_however_the_loss_adds_up(tokens: list[Said], algorithm: Algorithm) -> None:
    metrics = loss_of(tokens, algorithm).metrics
    ratios = [slow_ratio(t, torch.tensor(t.logp).double(), algorithm.ratio, tokens).item() for t in tokens]
    expected = {
        "ratio": statistics.fmean(ratios),
        "approx_kl": statistics.fmean(math.exp(t.logp - t.sampled) - 1 - (t.logp - t.sampled) for t in tokens),
        "entropy": statistics.fmean(t.entropy for t in tokens),
    }
    if algorithm.kl.where != "off":
        expected["ref_kl"] = statistics.fmean(slow_kl(t.logp, t.reference, algorithm.kl).item() for t in tokens)
    if algorithm.correction.level != "off":
        knobs = algorithm.correction
        weights = [slow_correction(t, replace(knobs, bound=1e9), tokens) for t in tokens]
        expected["rollout_logprob_gap"] = statistics.fmean(abs(t.old - t.sampled) for t in tokens)
        expected["correction"] = statistics.fmean(slow_correction(t, knobs, tokens) for t in tokens)
        expected["corrected"] = statistics.fmean(weight > knobs.bound for weight in weights)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-6, abs=1e-6)
    of_critic = {"value", "value_loss", "value_clipped"}
    shares = slow_shares(tokens, algorithm.aggregation.kind)
    expected["advantage/mean_token"] = sum(w * t.advantage for w, t in zip(shares, tokens, strict=True))
    assert metrics["advantage/mean_token"] == pytest.approx(expected["advantage/mean_token"], abs=1e-6)
    assert set(metrics) == {*expected, "clip_fraction", *of_critic}


@settings(max_examples=25)
@given(saids(), algorithms, st.data())
def test_splitting_and_order_change_nothing(tokens: list[Said], algorithm: Algorithm, data: st.DataObject) -> None:
    """Parts hold whole episodes, or whole turns where the algorithm is content with segments."""
    keys = [(t.episode, 0 if algorithm.unit == "episode" else t.turn) for t in tokens]
    part_of = {key: data.draw(st.integers(0, 2)) for key in sorted(set(keys))}
    order = data.draw(st.permutations(range(len(tokens))))
    # One of the parts is empty, as on a process that has nothing left to do.
    parts = [[n for n in order if part_of[keys[n]] == part] for part in range(4)]
    same(loss_of(tokens, algorithm), loss_of(tokens, algorithm, parts=parts))


@settings(max_examples=20)
@given(saids(), algorithms)
def test_two_processes_with_some_episodes_each_carry_the_loss_together(
    tokens: list[Said], algorithm: Algorithm
) -> None:
    shares = [[t for t in tokens if t.episode == 0], [t for t in tokens if t.episode > 0]]
    first, second = at_once(lambda rank, total: loss_of(shares[rank], algorithm, total=total))
    whole = loss_of(tokens, algorithm)
    assert first.loss.item() + second.loss.item() == pytest.approx(whole.loss.item(), rel=1e-6, abs=1e-6)
    summed = {name: first.metrics[name] + second.metrics[name] for name in whole.metrics}
    assert summed == pytest.approx(whole.metrics, rel=1e-6, abs=1e-6)
    for own, others, expected in zip(first.gradients, second.gradients, whole.gradients, strict=True):
        assert own + others == pytest.approx(expected, rel=1e-6, abs=1e-6)


@settings(max_examples=10)
@given(algorithms)
def test_nothing_said_is_a_loss_of_zero_that_can_be_differentiated(algorithm: Algorithm) -> None:
    found = loss_of([], algorithm, parts=[[]])
    assert found.gradients == [[], [], []]
    assert found.loss.item() == 0
    assert set(found.metrics.values()) <= {0.0}


@settings(max_examples=40)
@given(st.sampled_from([-1e4, -40.0, 40.0, 1e4]), st.sampled_from([-1.0, 0.0, 1.0]), algorithms)
def test_log_ratios_that_overflow_leave_everything_finite(far: float, advantage: float, algorithm: Algorithm) -> None:
    names = ("logp", "old", "sampled", "reference")
    tokens = [replace(Said(0, 0, advantage=advantage), **{name: -2 + far}) for name in names]
    found = loss_of(tokens, algorithm)
    assert found.loss.float().isfinite()
    assert all(math.isfinite(figure) for figure in found.metrics.values())
    assert all(math.isfinite(figure) for column in found.gradients for figure in column)


def test_a_token_without_weight_changes_nothing_whatever_its_log_probability_is() -> None:
    tokens = [Said(0, 0, advantage=2.0), Said(1, 0, logp=-500.0, advantage=-3.0)]
    algorithm = replace(PPO, correction=Correction(level="token", mode="mask"))
    tokens[1].sampled, tokens[1].old = -90.0, -2.0
    logp_gradient = loss_of(tokens, algorithm).gradients[0]
    assert logp_gradient[0] == pytest.approx(-1.0)
    assert logp_gradient[1] == 0


def gspo_by_hand(logps: Sequence[Tensor], tokens: Sequence[Said], knobs: Clip) -> Tensor:
    """Eqs. 5 to 7: the mean over sequences of min(s A, clip(s) A), s differentiated as it stands."""
    gains = []
    for episode in sorted({t.episode for t in tokens}):
        own = [(logp - t.old, t.advantage) for logp, t in zip(logps, tokens, strict=True) if t.episode == episode]
        s = torch.exp(torch.stack([apart for apart, _ in own]).mean())
        gains.append(torch.minimum(s * own[0][1], s.clamp(1 - knobs.low, 1 + knobs.high) * own[0][1]))
    return -torch.stack(gains).mean()


@settings(max_examples=25)
@given(saids(), st.sampled_from([3e-4, 0.3]))
def test_a_sequence_ratio_is_gspos_where_an_episode_has_one_advantage(tokens: list[Said], width: float) -> None:
    tokens = [replace(t, advantage=[1.0, -0.5, 0.25][t.episode]) for t in tokens]
    algorithm = replace(GSPO, clip=replace(GSPO.clip, low=width, high=width))
    logps = [torch.tensor(t.logp, dtype=torch.float64, requires_grad=True) for t in tokens]
    expected = gspo_by_hand(logps, tokens, algorithm.clip)
    expected.backward()
    found = loss_of(tokens, algorithm)
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-6)
    gradients = [0.0 if logp.grad is None else logp.grad.item() for logp in logps]
    assert found.gradients[0] == pytest.approx(gradients, rel=1e-6, abs=1e-6)


def test_a_turn_ratio_is_the_geometric_mean_over_the_turn() -> None:
    tokens = [Said(0, 0, logp=-0.5), Said(0, 0, logp=-0.1), Said(0, 1, logp=-3.0), Said(1, 0, logp=-1.0)]
    turns = [math.exp((0.5 + 0.9) / 2), math.exp(-2.0), 1.0]
    algorithm = Algorithm(advantages=GAE(), ratio="turn", clip=Clip(kind="none"))
    found = loss_of(tokens, algorithm)
    assert found.metrics["ratio"] == pytest.approx((2 * turns[0] + turns[1] + turns[2]) / 4)
    assert found.gradients[0] == pytest.approx([-turns[0] / 4, -turns[0] / 4, -turns[1] / 4, -turns[2] / 4], rel=1e-6)


def test_what_each_clip_leaves_of_the_gradient() -> None:
    """Ratios of 2 and 1/2, gained by and lost by."""
    tokens = [
        Said(0, 0, logp=-1 + apart, advantage=advantage)
        for apart, advantage in itertools.product([math.log(2), -math.log(2)], [1.0, -1.0])
    ]

    def pull(clip: Clip) -> tuple[list[float], float]:
        found = loss_of(tokens, Algorithm(advantages=GAE(), clip=clip))
        return [round(-4 * gradient, 6) for gradient in found.gradients[0]], found.metrics["clip_fraction"]

    assert pull(Clip(kind="none")) == ([2.0, -2.0, 0.5, -0.5], 0.0)
    assert pull(Clip(kind="ppo")) == ([0.0, -2.0, 0.5, 0.0], 0.5)
    assert pull(Clip(kind="ppo", dual=1.5)) == ([0.0, 0.0, 0.5, 0.0], 0.75)
    assert pull(Clip(kind="ppo", high=1.5)) == ([2.0, -2.0, 0.5, 0.0], 0.25)
    assert pull(Clip(kind="cispo")) == ([1.2, -1.2, 0.8, -0.8], 1.0)
    assert pull(Clip(kind="cispo", low=1.0)) == ([1.2, -1.2, 0.5, -0.5], 0.5)


def test_a_correction_looks_at_engine_and_old_and_never_at_the_update() -> None:
    tokens = [Said(0, 0, old=-1.0, sampled=-2.0), Said(0, 1, old=-1.0, sampled=-1.5), Said(1, 0, old=-1.5)]

    def weights(level: Any, how: Any) -> list[float]:
        algorithm = Algorithm(advantages=GAE(), clip=Clip(kind="none"), correction=Correction(level, how, 2.0))
        first, moved = (loss_of([replace(t, logp=t.old + by) for t in tokens], algorithm) for by in (0.0, 0.1))
        assert first.metrics["correction"] == moved.metrics["correction"]
        return [-3 * gradient for gradient in first.gradients[0]]

    half = math.exp(-0.5)
    assert weights("token", "truncate") == pytest.approx([2.0, math.exp(0.5), half], rel=1e-6)
    assert weights("token", "mask") == pytest.approx([0.0, math.exp(0.5), half], rel=1e-6)
    assert weights("sequence", "truncate") == pytest.approx([2.0, 2.0, half], rel=1e-6)
    assert weights("sequence", "mask") == pytest.approx([0.0, 0.0, half], rel=1e-6)


def test_a_correction_spares_kl_and_entropy() -> None:
    masked = Correction(level="token", mode="mask", bound=0.5)
    algorithm = Algorithm(advantages=GAE(), kl=KL("loss", "k2", 0.1), entropy=0.01, correction=masked)
    logp, entropy, _ = loss_of([Said(0, 0, reference=-3.0)], algorithm).gradients
    assert logp == pytest.approx([0.1 * 2.0])
    assert entropy == pytest.approx([-0.01])


def test_k3_far_below_the_reference_never_pushes_further_down() -> None:
    for logp in (-15.0, -21.5, -30.0, -1e5):
        found = loss_of([Said(0, 0, logp=logp, advantage=0.0)], Algorithm(advantages=GAE(), kl=KL("loss", "k3", 1.0)))
        assert found.gradients[0][0] <= 0


def test_a_clamped_k3_has_no_gradient_beyond() -> None:
    """Nats below the reference, and the gradient that pulls back with and without the clamp."""

    def pull(nats: float, clamp: float) -> tuple[float, float]:
        algorithm = Algorithm(advantages=GAE(), kl=KL("loss", "k3", 1.0, clamp))
        found = loss_of([Said(0, 0, logp=-1 - nats, advantage=0.0)], algorithm)
        return found.metrics["ref_kl"], -found.gradients[0][0]

    for nats in (-10.0, 0.5, 2.5):
        assert pull(nats, 10.0) == pull(nats, 0.0) == pytest.approx((math.exp(nats) - 1 - nats, math.exp(nats) - 1))
    for nats in (-12.0, 2.7, 10.0):
        assert pull(nats, 10.0) == (10.0, 0.0)
    assert pull(10.0, 0.0)[1] == pytest.approx(22025.5, abs=0.1)


def test_a_clamp_is_for_k3_alone_and_reaches_rewards() -> None:
    experience = seen_of([Said(0, 0, old=-9.0, reference=-1.0)])
    for estimator, penalty in (("k1", -8.0), ("k2", 32.0), ("k3", 10.0)):
        found = KL("reward", estimator, 0.5, 10.0).reward_penalty(experience)
        assert found is not None
        assert found.tolist() == [0.5 * penalty]


def test_a_missing_reference_or_critic_is_said_in_words() -> None:
    index, one = torch.zeros(1, dtype=torch.long), torch.ones(1)
    part = MicroBatch(index, index, -one, -one, one, one, share=torch.tensor(1.0))
    scores = ModelOutputs(-one, one)
    with pytest.raises(ValueError, match=r"reference model"):
        Algorithm(kl=KL("loss")).loss(scores, part)
    with pytest.raises(ValueError, match=r"critic to 'head' or 'separate'"):
        PPO.loss(scores, replace(part, values_M=one, value_targets_M=one, critic_weight_M=one))


@settings(max_examples=20)
@given(saids())
def test_imitation_is_the_mean_negative_log_likelihood(tokens: list[Said]) -> None:
    found = loss_of([replace(t, advantage=1.0) for t in tokens], Imitation())
    assert found.loss.item() == pytest.approx(-statistics.fmean(t.logp for t in tokens), rel=1e-6)
    assert found.metrics == pytest.approx(
        {"nll": found.loss.item(), "entropy": statistics.fmean(t.entropy for t in tokens)}, rel=1e-6, abs=1e-6
    )
    assert found.gradients == [pytest.approx([-1 / len(tokens)] * len(tokens), rel=1e-6), *[[0.0] * len(tokens)] * 2]


@pytest.mark.parametrize("clip", [0.2, 0.0])
def test_a_value_that_has_not_moved_far_is_not_clipped_by_rounding(clip: float) -> None:
    generator = torch.Generator().manual_seed(0)
    before_M = torch.randn(1000, generator=generator) * 0.02
    value_M, target_M = torch.rand(2, 1000, generator=generator) * torch.tensor([0.1, 0.3])[:, None]
    none_M = torch.zeros(1000)
    part = MicroBatch(
        none_M, none_M, none_M, none_M, none_M, none_M, none_M,
        values_M=before_M, value_targets_M=target_M, critic_weight_M=torch.full((1000,), 1e-3),
    )  # fmt: skip
    _, metrics = Critic(clip=clip).loss(ModelOutputs(none_M, none_M, value_M), part)
    assert metrics["value_clipped"] == 0


def test_knobs_that_mean_nothing_are_refused() -> None:
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
