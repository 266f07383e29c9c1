"""Tests of the weight transfer over CUDA IPC and of servers that sleep: a fake server, and files in place of GPUs."""

from __future__ import annotations

import asyncio
import inspect
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from agentgym_trainer.engines.base import EngineGone
from agentgym_trainer.engines.vllm import ipc_transfer
from agentgym_trainer.engines.vllm.ipc_handles import decode_handle, encode_handle
from agentgym_trainer.engines.vllm.process import IPC
from agentgym_trainer.engines.vllm.server import VllmServer
from agentgym_trainer.models.weights import Weights
from fake_vllm import SAMPLING, TENSORS, FakeServer, fake_weights, make_engine, run_scene
from file_memory import FileShared, cuda_arguments, file_transfer
from patience import PATIENCE, eventually_async
from torch import Tensor
from torch.multiprocessing import reductions
from vllm_pairs import require_vllm


def versions(server: FakeServer) -> list[float]:
    """Return the versions of the weights of complete updates over the transfer."""
    return [update[0]["version"].item() for update in server.transfer.received if "version" in update[0]]


def ipc(**options: Any) -> dict[str, Any]:
    """Return the settings of an engine whose server is on the learner's GPU."""
    return {"ipc": file_transfer(**options), "sleeps": True}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("bucket", "requests"), [(1, 6), (2**20, 2)], ids=["many buckets", "two buckets"])
def test_the_worker_copies_exact_weights(dtype: torch.dtype, bucket: int, requests: int) -> None:
    """Even with room for all, a number of 8 bytes has to begin a bucket."""

    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        server.worker.vllm_config.model_config.dtype = dtype
        await sampler.load(fake_weights(4))
        (received,) = server.transfer.received[0]
        assert list(received) == [*TENSORS, "version"]
        for name, tensor in TENSORS.items():
            assert torch.equal(received[name], tensor.to(dtype) if tensor.is_floating_point() else tensor)
        calls = [body["method"] for path, body in server.requests if path == "/collective_rpc"]
        assert calls[1:] == ["agentgym_map_weights"] * requests
        assert (await sampler.generate([5], SAMPLING)).version == 4
        assert not server.worker.loaded

    run_scene(scene, **ipc(dtype=dtype, bucket=bucket))


def test_weights_arrive_before_the_cache_and_no_pickle_is_sent() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(fake_weights(1))
        assert await sampler.sleep()  # the next load sends them faster than the next request would
        assert server.asleep == {"weights", "kv_cache"}
        begin = len(server.requests)
        await sampler.load(fake_weights(2))
        assert server.paths[begin:] == [
            "/health", "/collective_rpc", "/wake_up", "/pause", "/update_weight_version",
            "/init_weight_transfer_engine", "/start_weight_update", *["/collective_rpc"] * 2, "/finish_weight_update",
            "/reset_prefix_cache", "/update_weight_version", "/wake_up", "/resume",
        ]  # fmt: skip
        assert "pickle" not in str(server.requests)
        assert (await sampler.generate([5], SAMPLING)).version == 2
        assert versions(server) == [1, 2]

    run_scene(scene, **ipc())


@pytest.mark.parametrize("lasting", [True, False])
def test_sampling_after_sleep_loads_the_same_weights_again_over_tcp(lasting: bool) -> None:
    passes = iter([fake_weights(3)])

    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        once = Weights(3, lambda: next(passes).tensors(), lasting=False)
        await sampler.load(fake_weights(3) if lasting else once)
        await sampler.sleep()
        await sampler.sleep()
        assert not server.holds_weights
        assert (await sampler.generate([5], SAMPLING)).version == 3
        assert [received["version"] for received in server.worker.loaded] == [3]
        assert versions(server) == [3]

    run_scene(scene, **ipc())


def test_base_model_of_an_adapter_is_kept_while_the_server_sleeps() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(fake_weights(1, adapter={"r": 4}))
        assert not await sampler.sleep()
        assert server.asleep
        assert server.holds_weights
        assert (await sampler.generate([5], SAMPLING)).version == 1
        await sampler.sleep()
        await sampler.load(fake_weights(2, adapter={"r": 4}))
        assert (await sampler.generate([5], SAMPLING)).version == 2
        assert [received["version"] for received in server.worker.loaded] == [1, 2]

    run_scene(scene, **ipc())


def test_a_sleeping_server_that_dies_is_left_alone_until_it_is_needed() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(fake_weights(1))
        server.stop()
        await sampler.sleep()
        await server.start()
        await asyncio.sleep(0.1)  # the watch looks every hundredth of a second
        assert not server.requests
        await sampler.load(fake_weights(2))
        assert versions(server) == [2]

    run_scene(scene, watch_every=0.01, **ipc())


def test_server_that_refuses_to_sleep_ends_the_run() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(fake_weights(1))
        server.overrides["/sleep"] = [lambda: (500, {"error": {"message": "out of memory"}})] * 99
        with pytest.raises(EngineGone, match="can't sleep: out of memory"):
            await sampler.sleep()

    run_scene(scene, **ipc())


def test_other_servers_keep_their_memory() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(fake_weights(1))
        assert not await sampler.sleep()
        assert not server.asleep

    run_scene(scene)


def test_server_that_cannot_map_the_memory_gets_weights_over_tcp(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        server.transfer.devices = ("another",)
        await sampler.load(fake_weights(1))
        await sampler.load(fake_weights(2))
        assert [received["version"] for received in server.worker.loaded] == [1, 2]
        assert server.paths.count("/init_weight_transfer_engine") == 1

    run_scene(scene, **ipc())
    assert "CUDA IPC can't be used" in caplog.text
    assert "no memory of another" in caplog.text


def test_the_run_ends_if_cuda_ipc_is_forced_and_fails() -> None:
    def refuse(size: int, device: torch.device) -> Any:
        raise RuntimeError("CUDA error: invalid device context")

    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        with pytest.raises(EngineGone, match=r"invalid device context\. Leave engine.transfer at auto"):
            await sampler.load(fake_weights(1))

    run_scene(scene, forced=True, **ipc(share=refuse))


def test_a_transfer_that_is_cancelled_is_followed_by_a_whole_one() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        mapping, mapped = server.transfer.map, threading.Event()

        def hang(info: Any) -> None:
            mapped.wait(PATIENCE)
            mapping(info)

        server.transfer.map = hang
        loading = asyncio.create_task(sampler.load(fake_weights(1)))
        await eventually_async(lambda: "/start_weight_update" in server.paths and server.paths[-1] == "/collective_rpc")
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        assert server.transfer.active
        mapped.set()
        await sampler.load(fake_weights(2))
        assert versions(server)[-1] == 2
        assert (await sampler.generate([5], SAMPLING)).version == 2

    run_scene(scene, **ipc())


class Exchange:
    """Messages between two threads in place of processes."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2)
        self._messages: list[Any] = [None, None]

    def gather(self, rank: int, message: Any) -> list[Any]:
        self._messages[rank] = message
        self._barrier.wait(PATIENCE)
        gathered = list(self._messages)
        self._barrier.wait(PATIENCE)
        return gathered


def two(exchange: Exchange, rank: int, **options: Any) -> dict[str, Any]:
    """Return the settings of an engine in one of two processes."""
    return ipc(gather=lambda message: exchange.gather(rank, message), device_id=f"device-{rank}", **options)


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_one_process_is_known_in_both(failing: int) -> None:
    """All then load over TCP; none waits for the others' tensors for ever."""
    exchange = Exchange()

    def tensors(rank: int) -> Iterator[tuple[str, Tensor]]:
        yield from fake_weights(1).tensors()

    def share(size: int, device: torch.device) -> Any:
        raise RuntimeError("out of memory")

    def options(rank: int) -> dict[str, Any]:
        return two(exchange, rank, **({"share": share} if rank == failing else {}))

    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        server.transfer.devices = ("device-0", "device-1")
        other = make_engine(server, pushes=False, **options(1))
        await asyncio.gather(*(e.load(Weights(1, lambda r=r: tensors(r))) for r, e in enumerate((sampler, other))))
        assert [received["version"] for received in server.worker.loaded] == [1]
        assert [engine._ipc for engine in (sampler, other)] == [None, None]
        assert (await other.generate([5], SAMPLING)).version == 1
        await other.close()

    run_scene(scene, **options(0))


def test_each_worker_copies_from_the_process_on_its_device() -> None:
    exchange = Exchange()

    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        server.transfer.devices = ("device-0", "device-1")
        other = make_engine(server, pushes=False, **two(exchange, 1, bucket=1))
        await asyncio.gather(sampler.load(fake_weights(5)), other.load(fake_weights(5)))
        assert [list(received) for received in server.transfer.received[0]] == [[*TENSORS, "version"]] * 2
        assert (await other.generate([5], SAMPLING)).version == 5
        # The process that doesn't talk to the server doesn't put it to sleep.
        await other.sleep()
        assert not server.asleep
        await other.close()

    run_scene(scene, **two(exchange, 0, bucket=1))


def test_both_processes_end_when_the_server_of_one_stays_away() -> None:
    exchange = Exchange()

    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        server.stop()
        other = make_engine(server, pushes=False, **two(exchange, 1))
        ends = await asyncio.gather(
            *(engine.load(fake_weights(1)) for engine in (sampler, other)), return_exceptions=True
        )
        assert [type(end) for end in ends] == [EngineGone] * 2, ends
        assert all("has been unavailable for 0 s" in str(end) for end in ends)
        await other.close()

    run_scene(scene, patience=0.0, **two(exchange, 0))


def test_a_process_that_is_cancelled_leaves_none_waiting() -> None:
    """The other one, which may be cancelled later, falls back to TCP."""
    exchange = Exchange()

    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        server.transfer.devices = ("device-0", "device-1")
        hanging, mapping = threading.Event(), server.transfer.map

        def hang(info: Any) -> None:
            hanging.wait(PATIENCE)
            mapping(info)

        server.transfer.map = hang
        other = make_engine(server, pushes=False, **two(exchange, 1))
        loads = [asyncio.create_task(engine.load(fake_weights(1))) for engine in (sampler, other)]
        await eventually_async(lambda: server.paths.count("/collective_rpc") == 2)
        loads[0].cancel()
        hanging.set()
        with pytest.raises(asyncio.CancelledError):
            await loads[0]
        assert (await sampler.generate([5], SAMPLING)).version == 1
        await loads[1]
        await other.close()

    run_scene(scene, **two(exchange, 0))


def test_handles_of_memory_survive_json() -> None:
    """What differs is the device, which vLLM replaces with the worker's."""
    given = cuda_arguments(b"\x00\x01\xfe handle", 640)
    assert decode_handle(encode_handle(given)) == (*given[:6], 0, *given[7:])
    assert len(given) == len(inspect.signature(reductions.rebuild_cuda_tensor).parameters)


def test_handles_are_what_torch_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own function runs with a storage that claims to be on a GPU."""
    shared = (3, b"memory", 640, 4096, b"/torch_1_2_3", 7, b"event", True)
    monkeypatch.setattr(torch.storage.TypedStorage, "_share_cuda_", lambda storage: shared)
    monkeypatch.setattr(torch.storage.UntypedStorage, "device", torch.device("cuda", 3))
    monkeypatch.setattr(reductions, "shared_cache", {})
    rebuild, arguments = reductions.reduce_tensor(torch.zeros(640, dtype=torch.uint8))
    assert rebuild is reductions.rebuild_cuda_tensor
    names = list(inspect.signature(rebuild).parameters)
    assert dict(zip(names, decode_handle(encode_handle(arguments)), strict=True)) == {
        "tensor_cls": torch.Tensor, "tensor_size": (640,), "tensor_stride": (1,), "tensor_offset": 0,
        "storage_cls": torch.storage.TypedStorage, "dtype": torch.uint8, "storage_device": 0,
        "storage_handle": b"memory", "storage_size_bytes": 640, "storage_offset_bytes": 4096, "requires_grad": False,
        "ref_counter_handle": b"/torch_1_2_3", "ref_counter_offset": 7, "event_handle": b"event",
        "event_sync_required": True,
    }  # fmt: skip


def test_the_memory_is_freed_after_a_load() -> None:
    made: list[FileShared] = []

    def share(size: int, device: torch.device) -> FileShared:
        made.append(FileShared(size, "device-0"))
        return made[-1]

    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(fake_weights(1))
        assert sampler._ipc is not None
        assert sampler._ipc._shared is None
        assert [len(shared.tensor) for shared in made] == [24]  # as the largest tensor, which exceeds the bucket

    run_scene(scene, **ipc(share=share, bucket=8))


@pytest.mark.long
def test_vllm_takes_the_calls_of_the_transfer() -> None:
    require_vllm()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.config.weight_transfer import WeightTransferConfig
        from vllm.distributed.weight_transfer import ipc_engine, packed_tensor
        from vllm.v1.worker.gpu_worker import Worker
    assert WeightTransferConfig(backend=IPC).backend == "ipc"
    ipc_engine.IPCWeightTransferInitInfo(packed=True)
    # The fields with which `agentgym_map_weights` calls the worker.
    inspect.signature(Worker.update_weights).bind(None, {})
    info = ipc_engine.IPCWeightTransferUpdateInfo(
        names=["a"], dtype_names=["bfloat16"], shapes=[[1]], tensor_sizes=[2], ipc_handles={"device-0": ()}
    )
    assert info.ipc_handles_pickled is None
    inspect.signature(packed_tensor.packed_ipc_consumer).bind(
        ipc_handle={}, names=[], shapes=[], dtype_names=[], tensor_sizes=[], device_index=0, importer=None
    )


def test_shared_memory_is_freed_before_the_server_allocates_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(_: FakeServer, sampler: VllmServer) -> None:
        end, freed = ipc_transfer._end, list[bool]()

        async def recording(server: Any, label: str) -> None:
            freed.append(sampler._ipc is not None and sampler._ipc._shared is None)
            await end(server, label)

        monkeypatch.setattr(ipc_transfer, "_end", recording)
        await sampler.load(fake_weights(1))
        assert freed == [True]

    run_scene(scene, **ipc())
