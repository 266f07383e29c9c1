"""Tests that our losses equal those of TRL's GRPOTrainer on ragged multi-turn episodes."""

from __future__ import annotations

from collections import defaultdict
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from agentgym_trainer.algorithms import KL, Aggregation, Algorithm, Clip, Correction
from completion_tokens import CompletionToken, loss_of
from torch import Tensor

CASES: list[tuple[dict[str, Any], Algorithm]] = [
    (
        {"loss_type": "grpo", "beta": 0.04},
        Algorithm(aggregation=Aggregation("sequence"), kl=KL("loss", "k3", 0.04)),
    ),
    ({"loss_type": "bnpo", "entropy_coef": 0.01}, Algorithm(entropy=0.01)),
    ({"loss_type": "dapo", "epsilon_high": 0.28}, Algorithm(clip=Clip(high=0.28))),
    ({"loss_type": "dapo", "delta": 1.5}, Algorithm(clip=Clip(dual=1.5))),
    ({"loss_type": "dr_grpo", "max_completion_length": 9}, Algorithm(aggregation=Aggregation("fixed", 9))),
    ({"loss_type": "cispo", "epsilon_high": 1.3}, Algorithm(clip=Clip("cispo", low=1.0, high=0.3))),
    (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 0.03, "epsilon_high": 0.04},
        Algorithm(ratio="sequence", clip=Clip(low=0.03, high=0.04), aggregation=Aggregation("sequence")),
    ),
    ({"loss_type": "dapo", "corrected": "token"}, Algorithm(correction=Correction("token", "truncate", 1.1))),
    ({"loss_type": "dapo", "corrected": "sequence"}, Algorithm(correction=Correction("sequence", "truncate", 1.1))),
]
"""TRL's arguments and our algorithm. In CISPO, TRL's epsilon is the bound itself and ours its distance from 1.
`corrected` is the level of TRL's vllm_importance_sampling_mode. The entropy bonuses are equal only if the loss is a
mean over tokens: TRL always adds the token mean of the entropy, we aggregate it like the loss."""

DEFAULTS: dict[str, Any] = {
    "beta": 0.0,
    "epsilon_low": 0.2,
    "epsilon_high": 0.2,
    "importance_sampling_level": "token",
    "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None,
    "aux_loss_enabled": False,
    "vllm_importance_sampling_correction": True,
    "current_gradient_accumulation_steps": 1,
    "use_adaptive_entropy": False,
    "model": SimpleNamespace(training=True),
    "accelerator": SimpleNamespace(
        num_processes=1, sync_gradients=True, gather=lambda value: value, reduce=lambda value, reduction: value
    ),
}
"""Attributes of a TRL trainer that its loss reads."""

COMPLETION_BT = torch.tensor(
    [[1, 1, 0, 0, 1, 1, 1, 0, 1], [1, 0, 1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0, 1, 1, 0]]
).bool()
"""True for completion tokens; False for the observations between turns and the padding after them."""


def random_inputs() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(11)
    distributions = {
        "old": (-2, 0.5),
        "logp": (0, 0.6),
        "rollout": (-0.1, 0.2),
        "reference": (-2, 0.5),
        "entropy": (2, 0.1),
    }
    inputs = {
        name: mean + std * torch.randn(COMPLETION_BT.shape, generator=generator, dtype=torch.float64)
        for name, (mean, std) in distributions.items()
    }
    for name in ("logp", "rollout"):
        inputs[name] = inputs["old"] + inputs[name]
    return {**inputs, "advantage": torch.tensor([1.25, -0.75, -0.5], dtype=torch.float64)}


def trl_loss(values: dict[str, Tensor], arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return TRL's loss and its gradient by the log-probabilities, without a model or other processes."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    logp_BT = values["logp"].clone().requires_grad_()
    trainer = SimpleNamespace(**DEFAULTS | arguments)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logp_BT, values["entropy"], None)
    trainer._metrics = defaultdict(lambda: defaultdict(list))
    trainer._entropy_bonus_enabled = "entropy_coef" in arguments
    trainer.use_vllm = "corrected" in arguments
    trainer.args = SimpleNamespace(
        **{"delta": None, "use_bias_correction_kl": False, "steps_per_generation": 1} | arguments
    )
    gap_BT = (values["old"] - values["rollout"]) * COMPLETION_BT
    gap = gap_BT.sum(1, keepdim=True) if arguments.get("corrected") == "sequence" else gap_BT
    ids_BT = torch.zeros_like(COMPLETION_BT, dtype=torch.long)
    inputs = {
        "prompt_ids": ids_BT,
        "prompt_mask": ids_BT,
        "completion_ids": ids_BT,
        "completion_mask": torch.ones_like(ids_BT),
        "tool_mask": COMPLETION_BT.long(),
        "advantages": values["advantage"],
        "old_per_token_logps": values["old"],
        "ref_per_token_logps": values["reference"],
        "num_items_in_batch": COMPLETION_BT.sum(),
        "importance_sampling_ratio": gap.exp().clamp(max=1.1),
    }
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    (gradient_BT,) = torch.autograd.grad(loss, logp_BT)
    return loss, gradient_BT[COMPLETION_BT]


@pytest.fixture(autouse=True)
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide vLLM from TRL, which would import it: that is slow, prints many warnings and isn't needed here."""
    monkeypatch.setattr(import_module("trl.import_utils"), "is_vllm_available", lambda min_version=None: False)


@pytest.mark.parametrize(("arguments", "algorithm"), CASES)
def test_losses_and_gradients_equal_those_of_trl(arguments: dict[str, Any], algorithm: Algorithm) -> None:
    values = random_inputs()
    turn_BT = (COMPLETION_BT & ~COMPLETION_BT.roll(1, 1)).cumsum(1)
    names = ("logp", "old", "rollout", "reference", "entropy")
    tokens = [
        CompletionToken(
            e, int(turn_BT[e, t]), advantage=values["advantage"][e].item(), **{n: values[n][e, t].item() for n in names}
        )
        for e, t in COMPLETION_BT.nonzero().tolist()
    ]
    found = loss_of(tokens, algorithm)
    loss, gradient_N = trl_loss(values, arguments)
    assert found.loss.item() == pytest.approx(loss.item(), rel=1e-6, abs=1e-6)
    assert found.gradients[0] == pytest.approx(gradient_N.tolist(), rel=1e-6, abs=1e-6)
