"""Tests of vLLM's own weight transfer, with a fake server and gloo in place of NCCL."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from agentgym_trainer.engines.vllm import nccl_transfer
from agentgym_trainer.engines.vllm.nccl_transfer import NcclTransfer, can_use_nccl
from agentgym_trainer.engines.vllm.process import NCCL
from agentgym_trainer.engines.vllm.server import VllmServer
from agentgym_trainer.models.weights import Weights
from fake_vllm import SAMPLING, TENSORS, FakeServer, fake_weights, make_engine, run_scene
from gloo_group import gloo_transfer
from patience import eventually_async
from torch import Tensor
from vllm_pairs import require_vllm


def offer(server: FakeServer) -> None:
    """Have the server offer NCCL, as with --weight-transfer-config."""
    server.worker.vllm_config.weight_transfer_config = SimpleNamespace(backend="nccl")


def once(version: int) -> Weights:
    """Return weights that permit one pass."""
    passes = iter([fake_weights(version)])
    return Weights(version, lambda: next(passes).tensors(), lasting=False)


def versions(server: FakeServer) -> list[list[float]]:
    """Return the versions of the weights that each worker received, for each complete update."""
    updates = server.transfer.received
    return [[received["version"].item() for received in update] for update in updates if "version" in update[0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("bucket", "requests"), [(1, 5), (2**20, 1)], ids=["many buckets", "one bucket"])
def test_all_workers_receive_exact_weights(
    dtype: torch.dtype, bucket: int, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_transfer, "_BUCKET", bucket)

    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        offer(server)
        server.worker.vllm_config.model_config.dtype = dtype
        await sampler.load(fake_weights(4))
        for received in server.transfer.received[0]:
            assert list(received) == [*TENSORS, "version"]
            for name, tensor in TENSORS.items():
                assert torch.equal(received[name], tensor.to(dtype) if tensor.is_floating_point() else tensor)
        assert len(server.transfer.received[0]) == 2
        assert server.paths[server.paths.index("/get_world_size") :] == [
            "/get_world_size", "/init_weight_transfer_engine", "/pause", "/update_weight_version",
            "/start_weight_update", *["/update_weights"] * requests, "/finish_weight_update", "/reset_prefix_cache",
            "/update_weight_version", "/resume",
        ]  # fmt: skip
        assert (await sampler.generate([5], SAMPLING)).version == 4
        await sampler.load(fake_weights(5))
        assert versions(server) == [[4, 4], [5, 5]]
        assert server.paths.count("/init_weight_transfer_engine") == 1
        assert not server.worker.loaded

    run_scene(scene, nccl=gloo_transfer())


def test_adapters_and_servers_without_nccl_use_tcp() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(fake_weights(1))
        offer(server)
        await sampler.load(fake_weights(2, adapter={"r": 4}))
        assert [received["version"] for received in server.worker.loaded] == [1, 2]
        assert not versions(server)

    run_scene(scene, nccl=gloo_transfer())


def test_restarted_server_gets_a_new_group_and_the_copied_weights() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        offer(server)
        await sampler.load(once(3))
        server.stop()
        await server.start()
        offer(server)
        assert (await sampler.generate([5], SAMPLING)).version == 3
        assert versions(server) == [[3, 3]]

    run_scene(scene, nccl=gloo_transfer())


def test_transfer_that_fails_is_repeated_with_a_new_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_transfer, "_BUCKET", 1)

    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        offer(server)
        update, updates = server.transfer.update, list[int]()

        async def die_in_the_second(info: Any) -> None:
            updates.append(1)
            if len(updates) == 2:
                server.stop()
            else:
                await update(info)

        server.transfer.update = die_in_the_second
        loading = asyncio.create_task(sampler.load(once(7)))
        await eventually_async(lambda: len(updates) == 2)
        await server.start()
        offer(server)
        await loading
        assert versions(server) == [[7, 7]]
        assert (await sampler.generate([5], SAMPLING)).version == 7

    run_scene(scene, nccl=gloo_transfer())


def test_next_load_completes_after_one_that_was_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_transfer, "_BUCKET", 1)

    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        offer(server)
        loading = asyncio.create_task(sampler.load(fake_weights(1)))
        await eventually_async(lambda: "/update_weights" in server.paths)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        assert server.transfer.active
        await sampler.load(fake_weights(2))
        assert versions(server) == [[2, 2]]
        assert len(server.transfer.received) == 2
        assert (await sampler.generate([5], SAMPLING)).version == 2

    run_scene(scene, nccl=gloo_transfer())


def test_weights_go_over_tcp_if_no_group_can_be_formed(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: Any) -> Any:
        raise OSError("no route")

    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        offer(server)
        server.overrides["/init_weight_transfer_engine"] = [lambda: (200, {})]
        for version in (1, 2):
            await sampler.load(fake_weights(version))
        assert [received["version"] for received in server.worker.loaded] == [1, 2]
        assert server.paths.count("/init_weight_transfer_engine") == 1

    run_scene(scene, nccl=NcclTransfer(torch.device("cpu"), join=fail))
    assert "fetches weights over TCP: OSError: no route" in caplog.text


def test_unavailable_server_delays_no_gathering() -> None:
    gathered: list[str] = []

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in TENSORS.items():
            gathered.append(name)
            yield name, tensor

    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        server.stop()
        loading = asyncio.create_task(sampler.load(Weights(1, tensors, lasting=False)))
        await eventually_async(lambda: gathered == list(TENSORS))
        await server.start()
        offer(server)
        await loading
        assert [list(received) for received in server.transfer.received[0]] == [list(TENSORS)] * 2

    run_scene(scene, nccl=gloo_transfer())


def test_process_that_does_not_push_drops_the_weights() -> None:
    gathered: list[str] = []

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in TENSORS.items():
            gathered.append(name)
            yield name, tensor

    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        other = make_engine(server, pushes=False)
        waiting = asyncio.create_task(other.load(Weights(1, tensors, lasting=False)))
        await eventually_async(lambda: gathered == list(TENSORS))
        assert not waiting.done()
        await sampler.load(fake_weights(1))
        await waiting
        assert not other._copy._kept
        await other.close()

    run_scene(scene)


def test_nccl_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_transfer, "find_spec", lambda name: name)
    for cpu_build in (True, False):
        monkeypatch.setattr(nccl_transfer, "is_cpu_build", lambda cpu_build=cpu_build: cpu_build)
        assert can_use_nccl(torch.device("cuda", 1)) != cpu_build
        assert not can_use_nccl(torch.device("cpu"))


@pytest.mark.long
def test_vllm_takes_the_calls_of_the_transfer() -> None:
    require_vllm()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.config.weight_transfer import WeightTransferConfig
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
        from vllm.distributed.weight_transfer import nccl_common
        from vllm.distributed.weight_transfer.nccl_engine import (
            NCCLWeightTransferEngine,
            NCCLWeightTransferInitInfo,
            NCCLWeightTransferUpdateInfo,
        )
        from vllm.entrypoints.rl.online import api_router
    assert WeightTransferConfig(backend=NCCL).backend == "nccl"
    signature(nccl_common.trainer_init).bind({"master_address": "h", "master_port": 1, "world_size": 3})
    signature(PyNcclCommunicator.broadcast).bind(None, torch.ones(1), src=0, stream=None)
    signature(PyNcclCommunicator.destroy).bind(None)
    NCCLWeightTransferInitInfo(master_address="h", master_port=1, rank_offset=1, world_size=3, packed=False)
    NCCLWeightTransferUpdateInfo(names=["a"], dtype_names=["bfloat16"], shapes=[[1]])
    assert NCCLWeightTransferEngine.init_info_cls is NCCLWeightTransferInitInfo
    routes = {route.path: route.methods for route in api_router.router.routes}
    for path in ("init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update"):
        assert routes[f"/{path}"] == {"POST"}
    assert routes["/get_world_size"] == {"GET"}
    assert "init_info" in signature(api_router.init_weight_transfer_engine).parameters
    assert "update_info" in signature(api_router.update_weights).parameters
