"""Tests of the memory that models leave behind."""

from __future__ import annotations

import gc
import os
from unittest.mock import Mock

import pytest
import torch
from agentgym_trainer.models.memory import limit_kernel_caches, pin_in_place

pytestmark = pytest.mark.quick


def test_kernel_caches_are_limited_unless_the_user_chose_a_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    limit_kernel_caches()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "256"
    assert os.environ["LRU_CACHE_CAPACITY"] == "7"


def test_pinned_memory_is_exactly_that_of_the_tensor_until_it_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Mock(cudaHostRegister=Mock(return_value=0))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    tensor = torch.zeros(1000, 3)
    address, portable = tensor.data_ptr(), 1
    pin_in_place(tensor)
    runtime.cudaHostRegister.assert_called_once_with(address, 12_000, portable)
    view = tensor[1]
    del tensor
    gc.collect()
    runtime.cudaHostUnregister.assert_not_called()
    del view
    runtime.cudaHostUnregister.assert_called_once_with(address)


def test_memory_that_cuda_cant_pin_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Mock(cudaHostRegister=Mock(return_value=2))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    with pytest.raises(RuntimeError, match="can't pin 40 bytes of host memory: cudaError 2"):
        pin_in_place(torch.zeros(10))
    runtime.cudaHostUnregister.assert_not_called()
