from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import torch
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.config import EngineSettings, Lora, RLConfig
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.trainers import model_setup, setup
from agentgym_trainer.trainers.model_setup import load_policy, policy_dtype
from agentgym_trainer.trainers.setup import open_accelerator, release_memory, resolve_precision

pytestmark = pytest.mark.quick

CPU = RLConfig(device="cpu")
AUTO = RLConfig(device="cpu", precision="auto")


@pytest.mark.parametrize(
    ("capabilities", "precision"),
    [
        ({"avx512_bf16": True}, "bf16"),
        ({"amx_bf16": True}, "bf16"),
        ({"avx512_bf16": False, "avx2": True}, "no"),
        ({}, "no"),
    ],
)
def test_auto_precision_is_bfloat16_where_the_processor_has_it(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], precision: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert resolve_precision(AUTO) == precision
    assert resolve_precision(CPU) == "no"


@pytest.mark.parametrize(("major", "precision"), [(7, "no"), (8, "bf16"), (9, "bf16")])
def test_auto_precision_is_bfloat16_on_gpus_that_dont_only_emulate_it(
    monkeypatch: pytest.MonkeyPatch, major: int, precision: str
) -> None:
    """torch emulates it on a T4 or V100, where it is slow, and vLLM refuses it."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(major=major))
    monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda _: True)
    assert resolve_precision(RLConfig(precision="auto")) == precision


def test_only_frozen_weights_are_loaded_in_bfloat16() -> None:
    lora = Lora(rank=4)
    assert policy_dtype(RLConfig(device="cpu", precision="bf16", lora=lora)) == torch.bfloat16
    assert policy_dtype(RLConfig(device="cpu", precision="bf16")) == torch.float32
    assert policy_dtype(RLConfig(device="cpu", lora=lora)) == torch.float32


def test_no_process_loads_a_whole_model_on_its_gpu_if_it_will_be_sharded(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []

    def load(name: str, *, dtype: torch.dtype, device: Any = "meta") -> tuple[Any, None]:
        loads.append(str(device))
        return Mock(), None

    monkeypatch.setattr(model_setup, "is_sharded", lambda _: True)
    monkeypatch.setattr(model_setup, "load_model", load)
    monkeypatch.setattr(model_setup, "load_architecture", load)
    for main in (True, False):
        process: Any = SimpleNamespace(is_main_process=main, device=torch.device("cuda:0"))
        load_policy(RLConfig(device="auto"), "Qwen/Qwen2.5-7B-Instruct", process)
    assert loads == ["cpu", "meta"]


@pytest.mark.parametrize(
    ("kind", "sharded", "device"),
    [("transformers", True, "cuda:0"), ("vllm", True, "cpu"), ("vllm", False, "cuda:0")],
)
def test_the_model_of_the_final_test_is_loaded_once(
    kind: str, sharded: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, opened = Mock(return_value=(Mock(), None)), Mock()
    process: Any = SimpleNamespace(device=torch.device("cuda:0"), mixed_precision="bf16")
    for name, value in {
        "open_accelerator": lambda _: process, "is_sharded": lambda _: sharded, "load_model": load,
        "open_engine": opened, "RolloutRunner": MagicMock(), "weights_of": Mock(), "load_weights": Mock(),
    }.items():  # fmt: skip
        monkeypatch.setattr(setup, name, value)
    config = RLConfig(engine=EngineSettings(kind=kind))
    with setup.saved_model(config, "model", Path("run"), Mock(), Mock()):
        pass
    assert str(load.call_args.kwargs["device"]) == device
    assert opened.call_args.kwargs["own_copy"] is (kind == "vllm")
    # What is whole and on the right device isn't loaded again for the engine.
    policy = torch.nn.Linear(2, 2)
    policy.device = torch.device("cuda:0")  # type: ignore[assignment]
    assert setup._whole_model(config, "model", policy, process) is policy
    assert load.call_count == 1


def test_a_launcher_that_requests_deepspeed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(UsageError, match="requests DeepSpeed, which isn't supported; use FSDP2"):
        open_accelerator(CPU)


@pytest.mark.parametrize(("device", "minutes"), [("cpu", 24 * 60), ("auto", 30)])
def test_a_hanging_collective_on_gpus_ends_the_run_within_half_an_hour(
    device: Any, minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages, which may have to wait for episodes, have a group of their own there (`distributed`)."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(setup, "Accelerator", lambda **options: given.update(options) or Mock(is_fsdp2=False))
    open_accelerator(RLConfig(device=device, precision="no"))
    (patience,) = given["kwargs_handlers"]
    assert patience.timeout == timedelta(minutes=minutes)


def test_memory_can_be_released_at_any_time() -> None:
    kept = torch.ones(1000)
    release_memory()
    assert kept.sum() == 1000


@pytest.mark.parametrize(
    ("kind", "expected"), [("transformers", ["load"]), ("vllm", ["free", "load"]), ("vllm-server", ["free", "load"])]
)
def test_gpu_memory_is_freed_for_engines_that_allocate_by_themselves(
    monkeypatch: pytest.MonkeyPatch, kind: str, expected: list[str]
) -> None:
    events: list[str] = []
    monkeypatch.setattr(setup, "clear_device_cache", lambda: events.append("free"))
    rollouts = Mock(load=lambda weights: events.append("load"))
    setup.load_weights(RLConfig(engine=EngineSettings(kind=kind)), rollouts, Mock(), Ranks())
    assert events == expected
