"""Completion tokens, drawn by hypothesis with everything that a loss uses, and the loss of an algorithm on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from agentgym_trainer.algorithms import (
    GAE,
    KL,
    AdvantageOutput,
    Aggregation,
    Algorithm,
    Clip,
    Correction,
    Critic,
    Imitation,
    MicroBatch,
    ModelOutputs,
    TokenBatch,
)
from hypothesis import strategies as st
from token_batches import single_process_total
from torch import Tensor

if TYPE_CHECKING:
    from agentgym_trainer.algorithms.types import Total


@dataclass
class CompletionToken:
    """A completion token, with everything that a loss uses of it."""

    episode: int
    turn: int
    logp: float = -1.0
    old: float = -1.0
    rollout: float = -1.0
    reference: float = -1.0
    entropy: float = 1.0
    advantage: float = 1.0
    value: float = 0.0
    old_value: float = 0.0
    """The critic's estimate before the update."""
    target: float = 0.0
    trains_critic: bool = True
    """Whether the critic is trained on the token."""


@dataclass
class LossResult:
    """The loss of an algorithm for some completion tokens."""

    loss: Tensor
    metrics: dict[str, float]
    logp_N: Tensor
    entropy_N: Tensor
    value_N: Tensor

    @property
    def gradients(self) -> list[list[float]]:
        """Return the gradients with respect to the log-probability, entropy and value of each token."""
        self.loss.backward()
        leaves = (self.logp_N, self.entropy_N, self.value_N)
        return [[0.0] * len(leaf) if leaf.grad is None else leaf.grad.tolist() for leaf in leaves]


quarters = st.integers(-8, 8).map(lambda n: n / 4)
logps = quarters.map(lambda n: n - 2.5)


@st.composite
def completion_tokens(draw: st.DrawFn, *, min_size: int = 1) -> list[CompletionToken]:
    """Draw up to 9 tokens of up to 3 episodes of up to 3 turns, in order."""
    places = sorted(draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=min_size, max_size=9)))
    values = {"logp": logps, "old": logps, "rollout": logps, "reference": logps, "entropy": quarters}
    values |= {"advantage": quarters, "value": quarters, "old_value": quarters, "target": quarters}
    return [
        draw(st.builds(CompletionToken, st.just(e), st.just(k), **values, trains_critic=st.booleans()))
        for e, k in places
    ]


algorithms = st.builds(
    Algorithm,
    advantages=st.just(GAE()),
    ratio=st.sampled_from(["token", "turn", "sequence"]),
    clip=st.builds(
        Clip,
        kind=st.sampled_from(["ppo", "cispo", "none"]),
        low=st.sampled_from([0.0, 0.1, 0.2]),
        high=st.sampled_from([0.2, 0.28]),
        dual=st.sampled_from([0.0, 1.5, 3.0]),
    ),
    aggregation=st.builds(Aggregation, kind=st.sampled_from(["token", "sequence", "fixed"]), length=st.just(5)),
    kl=st.builds(
        KL,
        where=st.sampled_from(["off", "loss", "reward"]),
        estimator=st.sampled_from(["k1", "k2", "k3"]),
        weight=st.sampled_from([1e-3, 0.5]),
        clamp=st.sampled_from([0.0, 0.7]),
    ),
    entropy=st.sampled_from([0.0, 0.01]),
    correction=st.builds(
        Correction,
        level=st.sampled_from(["off", "token", "sequence"]),
        mode=st.sampled_from(["truncate", "mask"]),
        bound=st.sampled_from([0.9, 2.0]),
    ),
    critic=st.builds(Critic, weight=st.sampled_from([0.5, 1.0]), clip=st.sampled_from([0.0, 0.3])),
)
"""All combinations of options."""


def column(tokens: Sequence[CompletionToken], name: str) -> Tensor:
    """Return one field of all tokens, as float64 if it is a float."""
    (kind,) = [field.type for field in fields(CompletionToken) if field.name == name]
    dtype = {"float": torch.float64, "int": torch.long, "bool": torch.bool}[str(kind)]
    return torch.tensor([getattr(token, name) for token in tokens], dtype=dtype)


def token_batch_of(tokens: Sequence[CompletionToken]) -> TokenBatch:
    """Return the tokens as a batch of 3 episodes of 3 turns, some of which may have no tokens."""
    played_EK = torch.ones(3, 3, dtype=torch.bool)
    return TokenBatch(
        episode_N=column(tokens, "episode"),
        turn_N=column(tokens, "turn"),
        rollout_logprobs_N=column(tokens, "rollout"),
        rewards_EK=torch.zeros(3, 3),
        played_EK=played_EK,
        state_EK=played_EK.long(),
        group_E=torch.zeros(3, dtype=torch.long),
        old_logprobs_N=column(tokens, "old"),
        ref_logprobs_N=column(tokens, "reference"),
        values_N=column(tokens, "old_value"),
    )


def loss_of(
    tokens: Sequence[CompletionToken],
    algorithm: Algorithm | Imitation,
    *,
    parts: Sequence[Sequence[int]] | None = None,
    total: Total = single_process_total,
) -> LossResult:
    """Compute loss and metrics as a learner does: weights over all tokens, then micro-batch by micro-batch."""
    token_batch, mask_N = token_batch_of(tokens), torch.ones(len(tokens), dtype=torch.bool)
    advantages = AdvantageOutput(column(tokens, "advantage"), {})
    if algorithm.needs_critic:
        advantages = replace(
            advantages, value_targets_N=column(tokens, "target"), value_mask_N=column(tokens, "trains_critic")
        )
    weight_N = algorithm.weights(token_batch, mask_N, total).double()
    critic_weight_N = algorithm.critic_weights(advantages, mask_N, total)
    share = 1 / total(mask_N.sum().double()).clamp(min=1)
    leaves = [column(tokens, name).requires_grad_() for name in ("logp", "entropy", "value")]
    loss: Any = 0.0
    metrics: dict[str, float] = {}
    for indices in [range(len(tokens))] if parts is None else parts:
        index_M = torch.tensor(list(indices), dtype=torch.long)
        part_loss, part_metrics = algorithm.loss(
            ModelOutputs(*(leaf[index_M] for leaf in leaves)),
            MicroBatch(
                episode_M=token_batch.episode_N[index_M],
                turn_M=token_batch.turn_N[index_M],
                rollout_logprobs_M=token_batch.rollout_logprobs_N[index_M],
                old_logprobs_M=token_batch.old_or_rollout_logprobs_N[index_M],
                advantages_M=advantages.advantages_N[index_M],
                weight_M=weight_N[index_M],
                share=share,
                ref_logprobs_M=column(tokens, "reference")[index_M],
                values_M=column(tokens, "old_value")[index_M],
                value_targets_M=None if advantages.value_targets_N is None else advantages.value_targets_N[index_M],
                critic_weight_M=None if critic_weight_N is None else critic_weight_N[index_M].double(),
            ),
        )
        loss = loss + part_loss
        metrics = {name: metrics.get(name, 0.0) + value.item() for name, value in part_metrics.items()}
        assert not any(value.requires_grad for value in part_metrics.values())
    return LossResult(loss, metrics, *leaves)
