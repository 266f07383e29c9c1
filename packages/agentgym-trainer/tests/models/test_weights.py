"""Tests of the weights that a learner exports to an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from agentgym_trainer.config import Lora
from agentgym_trainer.models.load import with_lora
from agentgym_trainer.models.weights import HostCopy, Weights, weights_of
from torch import Tensor
from toy_learner import make_learner


@pytest.mark.parametrize("lasting", [True, False])
def test_exported_weights_are_the_policys_own_tensors(new_model: Callable[..., Any], lasting: bool) -> None:
    student = make_learner(new_model())
    weights = student.weights(7, lasting=lasting)
    exported, own = dict(weights.tensors()), student.policy.state_dict()
    assert (weights.version, weights.adapter, weights.lasting, weights.collective) == (7, None, lasting, False)
    assert exported.keys() == own.keys() >= {"lm_head.weight", "model.embed_tokens.weight"}
    assert all(tensor.data_ptr() == own[name].data_ptr() for name, tensor in exported.items())
    assert dict(weights.tensors()).keys() == exported.keys(), "tensors() can be called repeatedly"


def test_weights_of_an_adapter_are_only_its_tensors(new_model: Callable[..., Any]) -> None:
    student = make_learner(with_lora(new_model(), Lora(rank=2), seed=0))
    weights = student.weights(1)
    assert weights.adapter is not None
    assert weights.adapter["r"] == 2
    assert all(".lora_A." in name or ".lora_B." in name for name, _ in weights.tensors())


def test_last_update_has_been_computed_on_a_gpu_before_engines_read(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=lambda: waited.append(device))
    )
    tensors = {name: SimpleNamespace(is_cuda=name != "cpu", device="cuda:1") for name in ("one", "two", "cpu")}
    weights_of(SimpleNamespace(state_dict=lambda: tensors), 1)
    assert waited == ["cuda:1"]


SOURCE = {"one": torch.tensor([1.0, 1.00001]), "count": torch.tensor([7]), "two": torch.arange(3.0)}


def passing(read: list[str], **options: Any) -> Weights:
    """Return weights that permit one pass, which notes the names."""
    passes = iter([SOURCE])

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in next(passes).items():
            read.append(name)
            yield name, tensor.clone()

    return Weights(1, tensors, lasting=False, **options)


def test_weights_that_last_are_not_copied() -> None:
    weights = Weights(3, lambda: iter(SOURCE.items()))
    assert HostCopy(torch.bfloat16).of(weights) is weights


def test_first_pass_copies_weights_in_the_engines_data_type() -> None:
    read: list[str] = []
    weights = HostCopy(torch.bfloat16).of(passing(read))
    assert not read
    assert weights.lasting
    assert all(torch.equal(tensor, SOURCE[name]) for name, tensor in weights.tensors())
    for _ in range(2):
        again = dict(weights.tensors())
        assert list(again) == list(SOURCE)
        assert (again["one"].dtype, again["one"].tolist(), again["count"].dtype) == (
            torch.bfloat16,
            [1, 1],
            torch.int64,
        )
    assert read == list(SOURCE)


def test_pass_after_one_that_was_broken_off_has_all_weights() -> None:
    read: list[str] = []
    weights = HostCopy().of(passing(read))
    broken_off = weights.tensors()
    assert next(broken_off)[0] == "one"
    assert all(torch.equal(tensor, SOURCE[name]) for name, tensor in weights.tensors())
    assert read == list(SOURCE)


def test_copies_of_an_adapter_keep_their_data_type() -> None:
    weights = HostCopy(torch.bfloat16).of(passing([], adapter={"r": 1}))
    for _ in range(2):
        assert all(torch.equal(tensor, SOURCE[name]) for name, tensor in weights.tensors())


def test_host_memory_is_reused_for_the_next_weights() -> None:
    copy = HostCopy(torch.bfloat16)
    addresses: list[list[int]] = []
    for _ in range(3):
        weights = copy.of(passing([]))
        for _ in weights.tensors():
            pass
        addresses.append([tensor.data_ptr() for _, tensor in weights.tensors()])
    assert addresses[0] == addresses[1] == addresses[2]
