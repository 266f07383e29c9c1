"""Token-level on-policy distillation: advantages from a teacher's log-probabilities of the sampled tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from agentgym_trainer.algorithms.algorithm import statistics
from agentgym_trainer.algorithms.loss.kl import divergence

if TYPE_CHECKING:
    from agentgym_trainer.algorithms.types import AdvantageOutput, TokenBatch, Total


def with_teacher(
    output: AdvantageOutput, batch: TokenBatch, total: Total, *, reward_weight: float, teacher_weight: float
) -> AdvantageOutput:
    """Combine advantages from rewards with a teacher's.

    At each completion token, A = reward_weight * A_rewards - teacher_weight * (log pi - log pi_teacher), with the
    policy before the update. The expected policy gradient of the second term is that of KL(pi || pi_teacher) at the
    token, since the score function has mean 0: Lu and Thinking Machines Lab, "On-Policy Distillation" (2025), where the
    discount is 0, that is, the effect of a token on the divergence at later ones is neglected. That effect is the
    long part of MiniLLM's gradient (arXiv 2306.08543, eq. 4), and the rest its single-step part.

    Args:
        output: Advantages from rewards.
        batch: Has the log-probabilities, and `teacher_logprobs_N` if there is a teacher.
        total: Sums a tensor over all processes.
        reward_weight: Coefficient of the advantages from rewards.
        teacher_weight: Coefficient of the log-ratio.

    Returns:
        The advantages with their statistics, and with a teacher the metrics `teacher/weight` and `teacher/kl`: the mean
        log-ratio over completion tokens in the loss, an unbiased estimate of the divergence per token, in nats.
    """
    advantages_N, divergences = reward_weight * output.advantages_N, dict[str, float]()
    if batch.teacher_logprobs_N is not None:
        log_ratio_N = divergence(batch.old_or_rollout_logprobs_N, batch.teacher_logprobs_N, "k1")
        kept = log_ratio_N[batch.loss_mask_N].double()
        summed, count = total(torch.stack([kept.sum(), kept.new_tensor(len(kept))])).tolist()
        advantages_N = advantages_N - teacher_weight * log_ratio_N
        divergences = {"teacher/kl": summed / count, "teacher/weight": teacher_weight} if count else {}
    metrics = {**output.metrics, **statistics("advantage", advantages_N, total), **divergences}
    return replace(output, advantages_N=advantages_N, metrics=metrics)
