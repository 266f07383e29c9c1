"""Tests of the memory that models leave behind."""

from __future__ import annotations

import os

import pytest
from agentgym_trainer.models.memory import limit_kernel_caches

pytestmark = pytest.mark.quick


def test_kernel_caches_are_limited_unless_the_user_chose_a_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    limit_kernel_caches()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "256"
    assert os.environ["LRU_CACHE_CAPACITY"] == "7"
