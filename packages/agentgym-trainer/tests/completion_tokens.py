"""Said tokens drawn by hypothesis with all that a loss wants to know of them, and the loss that an algorithm makes."""

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
from token_batches import alone
from torch import Tensor

if TYPE_CHECKING:
    from agentgym_trainer.algorithms.types import Total


@dataclass
class Said:
    """One said token."""

    episode: int
    turn: int
    logp: float = -1.0
    old: float = -1.0
    sampled: float = -1.0
    reference: float = -1.0
    entropy: float = 1.0
    advantage: float = 1.0
    value: float = 0.0
    before: float = 0.0
    """The critic's before the update."""
    target: float = 0.0
    valued: bool = True
    """Whether the critic is trained here."""


@dataclass
class Found:
    """What an algorithm makes of said tokens."""

    loss: Tensor
    metrics: dict[str, float]
    logp_N: Tensor
    entropy_N: Tensor
    value_N: Tensor

    @property
    def gradients(self) -> list[list[float]]:
        """By log-probability, entropy and value of each token."""
        self.loss.backward()
        leaves = (self.logp_N, self.entropy_N, self.value_N)
        return [[0.0] * len(leaf) if leaf.grad is None else leaf.grad.tolist() for leaf in leaves]


quarters = st.integers(-8, 8).map(lambda n: n / 4)
logps = quarters.map(lambda n: n - 2.5)


@st.composite
def saids(draw: st.DrawFn, *, min_size: int = 1) -> list[Said]:
    """Up to 9 tokens of up to 3 episodes of up to 3 turns, in their order."""
    where = sorted(draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=min_size, max_size=9)))
    token = {"logp": logps, "old": logps, "sampled": logps, "reference": logps, "entropy": quarters}
    token |= {"advantage": quarters, "value": quarters, "before": quarters, "target": quarters}
    return [draw(st.builds(Said, st.just(e), st.just(k), **token, valued=st.booleans())) for e, k in where]


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
"""Every combination of choices."""


def column(tokens: Sequence[Said], name: str) -> Tensor:
    """One field of all tokens: float64, or as it is where it isn't a float."""
    (kind,) = [field.type for field in fields(Said) if field.name == name]
    dtype = {"float": torch.float64, "int": torch.long, "bool": torch.bool}[str(kind)]
    return torch.tensor([getattr(token, name) for token in tokens], dtype=dtype)


def seen_of(tokens: Sequence[Said]) -> TokenBatch:
    """What an algorithm sees of them; every episode that could be there is, whether it said something or not."""
    played_EK = torch.ones(3, 3, dtype=torch.bool)
    return TokenBatch(
        episode_N=column(tokens, "episode"),
        turn_N=column(tokens, "turn"),
        rollout_logprobs_N=column(tokens, "sampled"),
        rewards_EK=torch.zeros(3, 3),
        played_EK=played_EK,
        state_EK=played_EK.long(),
        group_E=torch.zeros(3, dtype=torch.long),
        old_logprobs_N=column(tokens, "old"),
        ref_logprobs_N=column(tokens, "reference"),
        values_N=column(tokens, "before"),
    )


def loss_of(
    tokens: Sequence[Said],
    algorithm: Algorithm | Imitation,
    *,
    parts: Sequence[Sequence[int]] | None = None,
    total: Total = alone,
) -> Found:
    """Loss and metrics as a learner asks for them: weights of the whole, then part by part."""
    experience, chosen_N = seen_of(tokens), torch.ones(len(tokens), dtype=torch.bool)
    credit = AdvantageOutput(column(tokens, "advantage"), {})
    if algorithm.needs_critic:
        credit = replace(credit, value_targets_N=column(tokens, "target"), value_mask_N=column(tokens, "valued"))
    weight_N = algorithm.weights(experience, chosen_N, total).double()
    critic_weight_N = algorithm.critic_weights(credit, chosen_N, total)
    share = 1 / total(chosen_N.sum().double()).clamp(min=1)
    leaves = [column(tokens, name).requires_grad_() for name in ("logp", "entropy", "value")]
    loss: Any = 0.0
    metrics: dict[str, float] = {}
    for part in [range(len(tokens))] if parts is None else parts:
        index_M = torch.tensor(list(part), dtype=torch.long)
        carried, figures = algorithm.loss(
            ModelOutputs(*(leaf[index_M] for leaf in leaves)),
            MicroBatch(
                episode_M=experience.episode_N[index_M],
                turn_M=experience.turn_N[index_M],
                rollout_logprobs_M=experience.rollout_logprobs_N[index_M],
                old_logprobs_M=experience.old_or_rollout_logprobs_N[index_M],
                advantages_M=credit.advantages_N[index_M],
                weight_M=weight_N[index_M],
                share=share,
                ref_logprobs_M=column(tokens, "reference")[index_M],
                values_M=column(tokens, "before")[index_M],
                value_targets_M=None if credit.value_targets_N is None else credit.value_targets_N[index_M],
                critic_weight_M=None if critic_weight_N is None else critic_weight_N[index_M].double(),
            ),
        )
        loss = loss + carried
        metrics = {name: metrics.get(name, 0.0) + figure.item() for name, figure in figures.items()}
        assert not any(figure.requires_grad for figure in figures.values())
    return Found(loss, metrics, *leaves)
