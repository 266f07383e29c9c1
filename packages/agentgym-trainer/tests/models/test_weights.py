"""Tests of the weights that a learner exports to an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from agentgym_trainer.config import Lora
from agentgym_trainer.models.load import with_lora
from toy_learner import make_learner


def test_exported_weights_are_the_policys_own_tensors(new_model: Callable[..., Any]) -> None:
    student = make_learner(new_model())
    weights = student.weights(7)
    exported, own = dict(weights.tensors()), student.policy.state_dict()
    assert (weights.version, weights.adapter) == (7, None)
    assert exported.keys() == own.keys() >= {"lm_head.weight", "model.embed_tokens.weight"}
    assert all(tensor.data_ptr() == own[name].data_ptr() for name, tensor in exported.items())
    assert dict(weights.tensors()).keys() == exported.keys(), "tensors() can be called repeatedly"


def test_copied_weights_have_their_own_storage(new_model: Callable[..., Any]) -> None:
    student = make_learner(new_model())
    exported, own = dict(student.weights(7, copied=True).tensors()), student.policy.state_dict()
    assert exported.keys() == own.keys()
    for name, tensor in exported.items():
        assert torch.equal(tensor, own[name])
        assert tensor.data_ptr() != own[name].data_ptr()


def test_weights_of_an_adapter_are_only_its_tensors(new_model: Callable[..., Any]) -> None:
    student = make_learner(with_lora(new_model(), Lora(rank=2), seed=0))
    weights = student.weights(1)
    assert weights.adapter is not None
    assert weights.adapter["r"] == 2
    assert all(".lora_A." in name or ".lora_B." in name for name, _ in weights.tensors())
