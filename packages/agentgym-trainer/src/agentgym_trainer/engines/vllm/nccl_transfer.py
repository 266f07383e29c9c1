"""Weight transfer over NCCL, from the learner's GPU to all workers of a vLLM server at once.

The server's side is vLLM's own, which a server has with `--weight-transfer-config '{"backend": "nccl"}'`. Of the
training processes, the one that pushes to the server joins a NCCL group with its workers, as rank 0. vLLM must be
installed in both places, but is only imported here when the group is opened.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch import Tensor

from agentgym_trainer.engines.vllm.client import Away, VllmHttp
from agentgym_trainer.engines.vllm.process import is_cpu_build
from agentgym_trainer.models.weights import Weights

_BUCKET = 512 * 2**20
"""Bytes of tensors that one request announces to the server."""
_Named = list[tuple[str, Tensor]]


class NoGroup(RuntimeError):
    """No NCCL group with the server's workers could be opened."""


class Group(Protocol):
    """A communicator as vLLM's `PyNcclCommunicator`."""

    def broadcast(self, tensor: Tensor, src: int, stream: Any = None) -> None:
        """Send a tensor of rank `src` to all others, in a CUDA stream."""
        ...

    def destroy(self) -> None:
        """Leave the group, and abort what is still in flight."""
        ...


def join_group(host: str, port: int, size: int, device: torch.device) -> Group:
    """Open a NCCL group at this address as its rank 0, and wait for the other ranks."""
    from vllm.distributed.weight_transfer.nccl_common import trainer_init

    with torch.cuda.device(device):
        return trainer_init({"master_address": host, "master_port": port, "world_size": size})


def can_use_nccl(device: torch.device) -> bool:
    """Whether this process can send tensors on this device over NCCL: vLLM's CUDA build is installed here, too."""
    return device.type == "cuda" and find_spec("vllm") is not None and not is_cpu_build()


class NcclTransfer:
    """The sending side of one server."""

    def __init__(
        self, device: torch.device, *, join: Callable[[str, int, int, torch.device], Group] = join_group
    ) -> None:
        """Open nothing yet.

        Args:
            device: The device of the weights.
            join: Opens the group as its rank 0.
        """
        self._device = device
        self._join = join
        self._group: Group | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def close(self) -> None:
        """Leave the group. The next `open` makes a new one."""
        group, self._group = self._group, None
        if group is not None:
            group.destroy()

    async def open(self, server: VllmHttp) -> None:
        """Form a group with the server's workers, unless there is one.

        Raises:
            NoGroup: when it can't be formed.
            Away: when the server is unreachable.
        """
        if self._group is not None:
            return
        host, size = server.learner_address, 1 + await server.count_workers()
        port = _free_port(host)
        info = {
            "master_address": host, "master_port": port, "rank_offset": 1, "world_size": size, "packed": False,
        }  # fmt: skip
        joining = asyncio.to_thread(self._join, host, port, size, self._device)
        try:
            # Both wait for each other.
            self._group, _ = await _all(joining, server.init_weight_transfer(info))
        except Exception as error:
            await server.alive()
            raise NoGroup(f"{type(error).__name__}: {error}") from error

    async def send(self, server: VllmHttp, weights: Weights, dtype: torch.dtype) -> None:
        """Replace the server's weights, while its requests are paused. After an error, `open` forms a new group.

        Args:
            server: The server; the group must be open.
            weights: A whole model.
            dtype: Floating-point tensors are sent in this type.

        Raises:
            Away: when the server or the group is lost.
            Refused: when the server can't load the weights.
        """
        tensors = weights.tensors()
        try:
            await server.start_weight_update()
            while bucket := await asyncio.to_thread(self._bucket, tensors, dtype):
                await _finished(asyncio.create_task(self._send_bucket(server, bucket)))
            await server.finish_weight_update()
        except BaseException:
            # The group is out of step if only one side took part in a broadcast.
            self.close()
            raise

    def _bucket(self, tensors: Iterator[tuple[str, Tensor]], dtype: torch.dtype) -> _Named:
        """Take the next tensors, cast and contiguous on the device."""
        bucket, size = _Named(), 0
        with self._on_stream():
            for name, tensor in tensors:
                kind = dtype if tensor.is_floating_point() else tensor.dtype
                bucket.append((name, tensor.detach().to(self._device, kind).contiguous()))
                size += bucket[-1][1].nbytes
                if size >= _BUCKET:
                    break
        return bucket

    async def _send_bucket(self, server: VllmHttp, bucket: _Named) -> None:
        info = {
            "names": [name for name, _ in bucket],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
            "shapes": [list(tensor.shape) for _, tensor in bucket],
        }
        sending = asyncio.to_thread(self._broadcast, [tensor for _, tensor in bucket])
        # The workers receive while they handle the request.
        await _all(sending, server.update_weights(info))
        if self._stream is not None:
            # The workers have received everything, so this doesn't wait for them.
            await asyncio.to_thread(self._stream.synchronize)

    def _broadcast(self, tensors: Sequence[Tensor]) -> None:
        assert self._group is not None, "open() must be called before send()"
        try:
            with self._on_stream():
                for tensor in tensors:
                    self._group.broadcast(tensor, src=0, stream=self._stream)
        except Exception as error:
            raise Away(f"the weight transfer failed: {error}") from error

    def _on_stream(self) -> AbstractContextManager[object]:
        """Make the device and the stream of the transfer current in this thread."""
        with ExitStack() as stack:
            if self._stream is not None:
                stack.enter_context(torch.cuda.device(self._device))
                stack.enter_context(torch.cuda.stream(self._stream))
            return stack.pop_all()


async def _all(*parts: Coroutine[Any, Any, Any]) -> list[Any]:
    """Wait for all coroutines, but only for the first that fails: the others might wait for it forever."""
    tasks = [asyncio.create_task(part) for part in parts]
    done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    if errors := [error for task in tasks if task in done and (error := task.exception()) is not None]:
        raise errors[0]
    return [task.result() for task in tasks]


async def _finished(task: asyncio.Task[None]) -> None:
    """Wait for a task. If the caller is cancelled, wait for it all the same, since both sides take part in it."""
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as probe:
        return probe.getsockname()[1]
