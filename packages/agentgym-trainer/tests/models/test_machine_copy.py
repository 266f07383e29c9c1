"""Tests of the copy of weights in a machine's memory; `test_sharded_weights.py` tests it with several processes."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import torch
from agentgym_trainer.models.machine_copy import MachineCopy
from agentgym_trainer.models.weights import HostCopy, Weights, exhaust
from torch import Tensor

TENSORS = {"one": torch.tensor([[1.0, 1.00001]]), "none": torch.empty(0, 2), "count": torch.tensor(7)}


def passed(copy: MachineCopy, weights: Weights) -> Weights:
    """Make a pass over weights that are copied, and return the weights of later passes."""
    return Weights(weights.version, lambda: copy.written(weights), weights.adapter, lasting=False, machine_copy=copy)


def tensors() -> Iterator[tuple[str, Tensor]]:
    return iter(TENSORS.items())


@pytest.mark.parametrize(
    ("adapter", "dtype"), [(None, torch.bfloat16), ({"r": 1}, torch.float32)], ids=["a whole model", "an adapter"]
)
def test_copy_has_the_data_type_of_the_engine_unless_it_is_an_adapter(
    adapter: dict[str, int] | None, dtype: torch.dtype
) -> None:
    copy = MachineCopy()
    weights = HostCopy(torch.bfloat16).of(passed(copy, Weights(1, tensors, adapter)))
    assert all(torch.equal(tensor, TENSORS[name]) for name, tensor in weights.tensors())
    for _ in range(2):
        again = dict(weights.tensors())
        assert list(again) == list(TENSORS)
        assert [tensor.dtype for tensor in again.values()] == [dtype, dtype, torch.int64]
        assert all(torch.equal(tensor, TENSORS[name].to(tensor.dtype)) for name, tensor in again.items())


def test_nothing_is_copied_unless_an_engine_asks_for_it() -> None:
    copy = MachineCopy()
    exhaust(copy.written(Weights(1, tensors)))
    assert copy._file is not None
    assert os.fstat(copy._file).st_size == 0


def test_memory_shrinks_with_the_copy_and_is_freed_with_its_last_tensor() -> None:
    copy = MachineCopy()
    large = Weights(1, lambda: iter([("one", torch.ones(50_000))]))
    exhaust(HostCopy().of(passed(copy, large)).tensors())
    file = copy._file
    assert file is not None
    before = os.fstat(file).st_size
    weights = HostCopy(torch.bfloat16).of(passed(copy, large))
    exhaust(weights.tensors())
    assert (before, os.fstat(file).st_size) == (200_000, 100_032)
    ((_, tensor),) = weights.tensors()
    del copy, weights
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
    assert tensor.sum() == 50_000
