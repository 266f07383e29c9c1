"""Tests of advantages from a teacher: the formula, and the gradient of the reverse KL divergence that it stands for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from agentgym_trainer.algorithms import GRPO
from agentgym_trainer.algorithms.distillation import with_teacher
from agentgym_trainer.algorithms.types import AdvantageOutput, TokenBatch
from torch import Tensor

pytestmark = pytest.mark.quick


def batch_of(rollout: list[float], teacher: list[float] | None, **more: Tensor) -> TokenBatch:
    count = len(rollout)
    return TokenBatch(
        episode_N=torch.arange(count),
        turn_N=torch.zeros(count, dtype=torch.long),
        rollout_logprobs_N=torch.tensor(rollout),
        rewards_EK=torch.zeros(count, 1),
        played_EK=torch.ones(count, 1, dtype=torch.bool),
        state_EK=torch.zeros(count, 1, dtype=torch.long),
        group_E=torch.zeros(count, dtype=torch.long),
        teacher_logprobs_N=None if teacher is None else torch.tensor(teacher),
        **more,
    )


def same(value: Tensor) -> Tensor:
    return value


def test_advantages_are_those_of_rewards_less_the_log_ratio() -> None:
    output = AdvantageOutput(torch.tensor([1.0, -2.0, 0.5]), {"advantage": 0.1})
    batch = batch_of([-1.0, -0.5, -3.0], [-1.5, -0.25, -1.0], loss_mask_E=torch.tensor([True, True, False]))
    found = with_teacher(output, batch, same, reward_weight=0.5, teacher_weight=2.0)
    assert found.advantages_N.tolist() == pytest.approx([0.5 - 2 * 0.5, -1 + 2 * 0.25, 0.25 + 2 * 2.0])
    assert found.metrics["teacher/kl"] == pytest.approx((0.5 - 0.25) / 2)
    assert found.metrics["teacher/weight"] == 2.0
    assert found.metrics["advantage"] == pytest.approx(found.advantages_N.mean().item())
    assert found.metrics["advantage_std"] == pytest.approx(found.advantages_N.std(correction=0).item())
    # The policy before the update is the learner's, if it was computed.
    old = with_teacher(
        output, batch.with_logprobs(old_logprobs_N=torch.zeros(3)), same, reward_weight=0.0, teacher_weight=1.0
    )
    assert old.advantages_N.tolist() == pytest.approx([-1.5, -0.25, -1.0])


def test_without_a_teacher_only_the_weight_of_rewards_applies() -> None:
    output = AdvantageOutput(torch.tensor([1.0, -2.0]), {})
    found = with_teacher(output, batch_of([-1.0, -0.5], None), same, reward_weight=0.25, teacher_weight=2.0)
    assert (found.advantages_N.tolist(), found.metrics) == (
        [0.25, -0.5],
        {"advantage": -0.125, "advantage_std": 0.375},
    )
    nothing = replace(batch_of([-1.0], [-1.0]), loss_mask_E=torch.tensor([False]))
    empty = AdvantageOutput(torch.zeros(1), {})
    assert "teacher/kl" not in with_teacher(empty, nothing, same, reward_weight=1.0, teacher_weight=1.0).metrics


def test_the_expected_gradient_is_that_of_the_reverse_kl() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, teacher = (torch.randn(7, generator=generator, dtype=torch.float64) for _ in range(2))
    logits.requires_grad_()
    logp, logp_teacher = logits.log_softmax(0), teacher.log_softmax(0)
    (expected,) = torch.autograd.grad((logp.exp() * (logp - logp_teacher)).sum(), logits, retain_graph=True)
    batch = batch_of(logp.tolist(), logp_teacher.tolist())
    zero = AdvantageOutput(torch.zeros(7), {})
    advantages = with_teacher(zero, batch, same, reward_weight=1.0, teacher_weight=1.0).advantages_N.double()
    # Every token once, with its probability as its weight, is the expectation over samples.
    (found,) = torch.autograd.grad(-(logp.exp().detach() * advantages * logp).sum(), logits)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_statistics_of_groups_do_not_depend_on_a_teacher() -> None:
    batch = batch_of([-1.0, -0.5], [-1.5, -0.25])
    assert GRPO.is_flat(batch) == GRPO.is_flat(batch.with_logprobs(teacher_logprobs_N=None))
