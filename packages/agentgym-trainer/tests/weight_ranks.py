"""Weights of a sharded learner in each of two processes, and the engines that load them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from accelerate import Accelerator
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.distributed import Ranks, thread_group
from agentgym_trainer.engines.base import Engine, EngineUsage, Weights
from agentgym_trainer.engines.batching import Batching
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.engines.vllm.ipc_transfer import IpcTransfer
from agentgym_trainer.models.scratch import build_model
from agentgym_trainer.models.weights import weights_of
from agentgym_trainer.rollout.runner import RolloutRunner
from counting_core import CountingCore
from fake_vllm import FakeServer, FakeTransfer, make_engine
from file_memory import file_transfer
from gloo_group import gloo_transfer
from toy_learner import make_learner
from two_processes import shard


class _Core(CountingCore):
    """A core that keeps what it loads. Its first `failures` loads fail in the middle."""

    def __init__(self, failures: list[int], loaded: dict[str, torch.Tensor], usage: EngineUsage) -> None:
        super().__init__(usage, [])
        self.failures, self.loaded = failures, loaded

    def load(self, weights: Weights) -> None:
        super().load(weights)
        for number, (name, tensor) in enumerate(weights.tensors()):
            if self.failures and number == 3:
                self.failures.pop()
                raise OSError("the device is lost")
            self.loaded[name] = tensor.clone()


def _load(weights: Weights, engine: Engine) -> str:
    """Load weights as the training loop does, and return the error that ends the run; empty if there is none."""
    with RolloutRunner(engine) as rollouts:
        try:
            with Ranks().errors_together():
                rollouts.load(weights)
        except RuntimeError as error:  # such as EngineGone
            return str(error)
    return ""


def _load_in_process(weights: Weights, *, failures: int = 0, in_thread: bool = True) -> tuple[str, Any]:
    loaded: dict[str, torch.Tensor] = {}
    make: Callable[[EngineUsage], _Core] = partial(_Core, [1] * failures, loaded)
    return _load(weights, Batching(make, in_thread=in_thread)), loaded


def _load_again(weights: Weights, dtype: torch.dtype | None) -> tuple[Any, Any]:
    """Load weights, and then again what the engine keeps of them. Return that, and what identifies shared memory."""
    loaded: dict[str, torch.Tensor] = {}
    engine = Batching(partial(_Core, [], loaded), in_thread=True, dtype=dtype)
    with RolloutRunner(engine) as rollouts, Ranks().errors_together():
        rollouts.load(weights)
        loaded.clear()
        engine._load_core()
        copy = rollouts._machine_copy
        if not copy.shared:
            return loaded, None
        memory = os.fstat(copy._file or -1)
        return loaded, (memory.st_ino, memory.st_blocks * 512)


def _failing(name: str, error: Exception, fails: bool) -> Any:
    """Return a context in which a function raises an error, if `fails`."""
    return patch(name, side_effect=error) if fails else nullcontext()


def _load_without_memory(weights: Weights, *, full: bool) -> str:
    """Load weights when this process can't write its part of the copy; return the error."""
    with _failing("os.pwrite", torch.OutOfMemoryError("CUDA out of memory"), full):
        return _load_in_process(weights)[0]


def _load_into_server(weights: Weights, ranks: Ranks, backend: str, *, starting: bool = False) -> tuple[str, Any]:
    """Load weights into a server of both processes, to which the first one pushes. Return what it got.

    A starting server isn't available to the first request.
    """

    async def start(server: FakeServer) -> str:
        await server.start()
        server.worker.vllm_config.weight_transfer_config = SimpleNamespace(backend=backend)
        if starting:
            server.overrides["/health"] = [lambda: (503, None)]
        return server.url

    async def stop(server: FakeServer) -> None:
        server.stop()

    server = FakeServer()
    FakeTransfer.devices = tuple(f"device-{rank}" for rank in range(ranks.count))
    with RolloutRunner(ScriptedEngine(lambda ids: ids, end_id=0)) as host:
        url = ranks.broadcast(host.run(start(server)))
        nccl = gloo_transfer() if ranks.is_main and backend == "nccl" else None
        ipc = _ipc(ranks) if backend == "ipc" else None
        error = _load(weights, make_engine(url, pushes=ranks.is_main, nccl=nccl, ipc=ipc, sleeps=backend == "ipc"))
        ranks.gather([0])  # the other process needs the server until here
        host.run(stop(server))
    return error, [*server.worker.loaded, *(got for update in server.transfer.received for got in update)]


def _ipc(ranks: Ranks) -> IpcTransfer:
    """Return a transfer in which each process shares memory with the worker on its device, a little at a time."""
    group = thread_group("weights")

    def gather(message: Any) -> list[Any]:
        parts = [None] * ranks.count
        torch.distributed.all_gather_object(parts, message, group=group)
        return parts

    return file_transfer(gather, device_id=f"device-{ranks.index}", bucket=8192)


def main(out: Path) -> None:
    """Load the weights of a sharded model into engines of several kinds, and write what arrived to `out`."""
    accelerator = Accelerator(cpu=True)
    shard(accelerator)
    rank, ranks = accelerator.process_index, Ranks()
    settings = Scratch(vocab=320, hidden=32, layers=2, heads=2)
    model = build_model(settings, vocab=320, end_id=2, pad_id=0, seed=5)
    learner = make_learner(model, accelerator=accelerator)
    state = accelerator.get_state_dict(learner.actor)
    with _failing("os.memfd_create", OSError(errno.ENOSYS, "not implemented"), rank == 0):
        no_memory_files = _load_again(learner.weights(1), torch.bfloat16)
    with _failing("os.open", PermissionError(), rank == 1):
        not_permitted = _load_again(learner.weights(2), None)
    results = {
        "processes": ranks.count,
        "expected": {name.removeprefix("policy."): tensor for name, tensor in state.items()},
        "in process": _load_in_process(learner.weights(1), in_thread=False),
        "bf16": _load_in_process(weights_of(learner.policy, 2, precision="bf16")),
        "one fails once": _load_in_process(learner.weights(3), failures=rank),
        "one is gone": _load_in_process(learner.weights(4), failures=2 * rank)[0],
        "kept": _load_again(learner.weights(5), None),
        "kept in bf16": _load_again(learner.weights(6), torch.bfloat16),
        "one is full": _load_without_memory(learner.weights(7), full=rank == 1),
        "no memory files": no_memory_files,
        "not permitted": not_permitted,
        "server over tcp": _load_into_server(learner.weights(8), ranks, ""),
        "server over nccl": _load_into_server(learner.weights(9), ranks, "nccl"),
        "server over ipc": _load_into_server(learner.weights(10), ranks, "ipc"),
        "starting server over ipc": _load_into_server(learner.weights(11), ranks, "ipc", starting=True),
    }
    torch.save(results, out / f"{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
