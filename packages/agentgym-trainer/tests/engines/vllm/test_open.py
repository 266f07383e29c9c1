"""Tests of where vLLM servers run, and how they get weights. None is started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from agentgym_trainer.config import EngineSettings
from agentgym_trainer.engines.vllm import open as opening
from agentgym_trainer.engines.vllm import process
from agentgym_trainer.engines.vllm.pool import VllmPool
from agentgym_trainer.engines.vllm.server import VllmServer

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 1)
URL = ("http://127.0.0.1:1",)


@pytest.fixture(autouse=True)
def cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's CUDA build, and GPUs with UUIDs."""
    monkeypatch.setattr(process, "find_spec", lambda name: name)
    for module in (process, opening):
        monkeypatch.setattr(module, "is_cpu_build", lambda: False)
    monkeypatch.setattr(opening, "can_use_nccl", lambda device: device.type == "cuda")
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"{device.index}a"))
    monkeypatch.setattr(opening, "thread_group", lambda name: name)


def opened(
    device: torch.device, said: list[str], *, local: int = 1, index: int = 0, machines: int = 1, **settings: Any
) -> Any:
    """Return the engine of one of several processes; each machine has as many, with a GPU each."""
    count = local * machines

    def gather(items: list[Any]) -> list[Any]:
        if isinstance(items[0], tuple):  # the machine and GPU of each process
            return [(rank // local * local, f"GPU-{rank % local}a") for rank in range(count)]
        return items * count

    ranks = SimpleNamespace(
        index=index, count=count, first_here=index // local * local, broadcast=lambda value: value, gather=gather
    )
    context: Any = SimpleNamespace(
        settings=EngineSettings("vllm-server", **settings), ranks=ranks, end_id=2, max_context=64, device=device,
        dtype=torch.bfloat16, say=said.append, name="start", folder=Path("run"), lora_rank=0, seed=0,
    )  # fmt: skip
    return opening.open_server(context)


@pytest.mark.parametrize(
    ("device", "settings", "transfer", "sentence"),
    [
        (CUDA, {}, "ipc", "on the GPUs that train, which takes a while; its log file is run/vllm-0.log. "
         "It gets weights over CUDA IPC."),
        (CUDA, {"transfer": "tcp"}, "tcp", "It gets weights over TCP."),
        (CUDA, {"devices": "2,3"}, "nccl", "It gets weights over NCCL."),
        (CUDA, {"devices": "2,3", "transfer": "tcp"}, "tcp", "It gets weights over TCP."),
        (CUDA, {"urls": URL}, "nccl", "get weights over NCCL if they offer it, and otherwise over TCP."),
        (CPU, {"urls": URL}, "tcp", "get weights over TCP."),
        (CPU, {}, "tcp", "It gets weights over TCP."),
        (CPU, {"devices": "0"}, "tcp", "It gets weights over TCP."),
    ],
)  # fmt: skip
def test_the_transfer_is_chosen_by_where_the_server_runs_and_printed(
    device: torch.device, settings: dict[str, Any], transfer: str, sentence: str
) -> None:
    said: list[str] = []
    engine = opened(device, said, **settings)
    assert said[0].endswith(sentence)
    assert ((engine._nccl is not None), (engine._ipc is not None)) == (transfer == "nccl", transfer == "ipc")
    shares = device == CUDA and not settings.get("devices") and not settings.get("urls")
    assert engine._sleeps == shares
    assert engine._forced == ("transfer" in settings)
    if engine._process is not None:
        command = " ".join(engine._process.serving.command(1))
        assert ("backend" in command) == (transfer != "tcp")
        assert ("--enable-sleep-mode" in command) == shares


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"transfer": "ipc"}, "engine.transfer ipc shares a GPU.s memory .* this run trains on cpu"),
        ({"transfer": "nccl", "urls": URL}, "engine.transfer nccl needs a GPU and vLLM.s CUDA build"),
    ],
)
def test_a_transfer_that_needs_a_gpu_is_refused_on_a_cpu(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        opened(CPU, [], **settings)


def test_a_server_on_the_gpus_that_train_uses_all_of_its_machine() -> None:
    """The first process of each machine starts it, and the others only take part in the transfer."""
    engines = [opened(CUDA, [], local=4, machines=2, index=index, tensor_parallel=2) for index in range(8)]
    assert [engine.pushes for engine in engines] == [index in (0, 4) for index in range(8)]
    assert all(engine._ipc is not None for engine in engines)
    for index in (0, 4):
        command = engines[index]._process.serving.command(1)
        assert "CUDA_VISIBLE_DEVICES=GPU-0a,GPU-1a,GPU-2a,GPU-3a" in command
        assert command[command.index("--tensor-parallel-size") + 1] == "2"
        assert command[command.index("--data-parallel-size") + 1] == "2"


def test_gpus_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(ValueError, match=r"engine.tensor_parallel 2 doesn't divide the 3 GPUs of this machine"):
        opened(CUDA, [], local=3, tensor_parallel=2)


@pytest.mark.parametrize(
    ("urls", "processes", "pushed"),
    [(1, 2, [[True], [False]]), (3, 2, [[True, False, True], [False, True, False]]), (1, 1, [[True]])],
)
def test_all_processes_sample_from_all_servers(urls: int, processes: int, pushed: list[list[bool]]) -> None:
    settings = EngineSettings("vllm-server", tuple(f"http://127.0.0.1:{n + 1}" for n in range(urls)))
    for rank in range(processes):
        ranks = SimpleNamespace(index=rank, count=processes, broadcast=lambda value: value)
        context: Any = SimpleNamespace(
            settings=settings, ranks=ranks, end_id=2, max_context=64, dtype=torch.float32, device=CPU, say=print
        )
        engine = opening.open_server(context)
        servers = engine._servers if isinstance(engine, VllmPool) else [engine]
        assert all(isinstance(server, VllmServer) for server in servers)
        assert [server.url for server in servers] == list(settings.urls)  # type: ignore[union-attr]
        assert [server.pushes for server in servers] == pushed[rank]  # type: ignore[union-attr]
