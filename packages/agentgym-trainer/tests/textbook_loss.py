"""A slow per-token implementation of the textbook loss, with float64 autograd."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from agentgym_trainer.algorithms import (
    KL,
    Algorithm,
    Clip,
    Correction,
)
from completion_tokens import CompletionToken
from torch import Tensor


def ratio_group(token: CompletionToken, level: str, tokens: Sequence[CompletionToken]) -> list[CompletionToken]:
    """Return the tokens that share a ratio with this one."""
    return [
        other
        for other in tokens
        if (level == "token" and other is token)
        or (level == "turn" and (other.episode, other.turn) == (token.episode, token.turn))
        or (level == "sequence" and other.episode == token.episode)
    ]


def slow_correction(token: CompletionToken, correction: Correction, tokens: Sequence[CompletionToken]) -> float:
    if correction.level == "off":
        return 1.0
    weight = math.exp(sum(other.old - other.rollout for other in ratio_group(token, correction.level, tokens)))
    return weight if weight <= correction.bound else (correction.bound if correction.mode == "truncate" else 0.0)


def slow_ratio(token: CompletionToken, logp: Tensor, level: str, tokens: Sequence[CompletionToken]) -> Tensor:
    """Return the token's own ratio, or the geometric mean with the gradient of GSPO's eq. 14."""
    if level == "token":
        return torch.exp(logp - token.old)
    mean = statistics.fmean(other.logp - other.old for other in ratio_group(token, level, tokens))
    return math.exp(mean) * torch.exp(logp - logp.detach())


def slow_gain(ratio: Tensor, logp: Tensor, advantage: float, clip: Clip) -> Tensor:
    low, high = 1 - clip.low, 1 + clip.high
    if clip.kind == "cispo":
        return min(max(ratio.item(), low), high) * advantage * logp
    gain = ratio * advantage
    if clip.kind == "ppo":
        clipped_gain = min(max(ratio.item(), low), high) * advantage
        gain = gain if gain.item() <= clipped_gain else torch.tensor(clipped_gain, dtype=torch.float64)
    if clip.dual and advantage < 0 and gain.item() < clip.dual * advantage:
        gain = torch.tensor(clip.dual * advantage, dtype=torch.float64)
    return gain


def slow_kl(logp: Any, reference: float, kl: KL) -> Tensor:
    log_ratio = torch.as_tensor(logp, dtype=torch.float64) - reference
    if kl.estimator == "k3":
        k3 = torch.exp(-log_ratio) - 1 + log_ratio
        return torch.tensor(kl.clamp).double() if 0 < kl.clamp < k3.item() else k3
    return {"k1": log_ratio, "k2": log_ratio**2 / 2}[kl.estimator]


def slow_mean(losses: Sequence[tuple[CompletionToken, Tensor]], kind: str, length: int) -> Tensor:
    """Return the aggregate of the tokens' losses."""
    if kind == "token":
        return torch.stack([loss for _, loss in losses]).mean()
    by_episode = [
        torch.stack([loss for token, loss in losses if token.episode == episode])
        for episode in sorted({token.episode for token, _ in losses})
    ]
    if kind == "sequence":
        return torch.stack([loss.mean() for loss in by_episode]).mean()
    return torch.stack([loss.sum() / length for loss in by_episode]).mean()


def slow_shares(tokens: Sequence[CompletionToken], kind: str) -> list[float]:
    """Return the weight of each token in the loss; the weights sum to 1."""
    counts = Counter(token.episode for token in tokens)
    by_episode = kind == "sequence"
    return [1 / len(counts) / counts[t.episode] if by_episode else 1 / len(tokens) for t in tokens]


def slow_value_loss(token: CompletionToken, value: Tensor, clip: float) -> Tensor:
    error = (value - token.target) ** 2
    if not clip:
        return error
    clipped_error = (min(max(value.item(), token.old_value - clip), token.old_value + clip) - token.target) ** 2
    return error if error.item() >= clipped_error else torch.tensor(clipped_error, dtype=torch.float64)


def textbook_loss(tokens: Sequence[CompletionToken], algorithm: Algorithm) -> tuple[Tensor, list[list[float]]]:
    """Return the loss and its gradients by log-probability, entropy and value of each token."""
    leaves = [
        [torch.tensor(getattr(token, name), dtype=torch.float64, requires_grad=True) for token in tokens]
        for name in ("logp", "entropy", "value")
    ]
    losses: list[tuple[CompletionToken, Tensor]] = []
    for token, logp, entropy in zip(tokens, *leaves[:2], strict=True):
        gain = slow_gain(slow_ratio(token, logp, algorithm.ratio, tokens), logp, token.advantage, algorithm.clip)
        objective = slow_correction(token, algorithm.correction, tokens) * gain + algorithm.entropy * entropy
        if algorithm.kl.where == "loss":
            objective = objective - algorithm.kl.weight * slow_kl(logp, token.reference, algorithm.kl)
        losses.append((token, -objective))
    loss = slow_mean(losses, algorithm.aggregation.kind, algorithm.aggregation.length)
    errors = [
        slow_value_loss(token, value, algorithm.critic.clip)
        for token, value in zip(tokens, leaves[2], strict=True)
        if token.trains_critic
    ]
    if errors:
        loss = loss + algorithm.critic.weight * torch.stack(errors).mean()
    loss.backward()
    return loss, [[0.0 if leaf.grad is None else leaf.grad.item() for leaf in column] for column in leaves]
