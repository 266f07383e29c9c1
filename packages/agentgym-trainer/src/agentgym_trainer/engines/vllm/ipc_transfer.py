"""Weight transfer over CUDA IPC, from learners to a vLLM server whose workers compute on the same GPUs.

Each training process copies its next tensors into a buffer on its GPU. The first process of the machine tells the
server where the buffers are, and each worker copies from the one on its own GPU. All training processes take part,
because only a process of the same GPU can share memory there. The server's side is vLLM's own backend `ipc`.

vLLM takes handles of such memory over HTTP only as a pickle, which can execute anything when it is read, and only with
VLLM_ALLOW_INSECURE_SERIALIZATION=1. Here they travel as JSON to our extension of the workers (`worker`), which hands
them to vLLM's backend in the worker, so that no server has to accept pickles.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from agentgym_trainer.engines.base import EngineGone
from agentgym_trainer.engines.vllm.client import Away, Refused, VllmHttp
from agentgym_trainer.engines.vllm.ipc_handles import encode_handle
from agentgym_trainer.models.weights import SHARED_BYTES, Weights

Gather = Callable[[Any], list[Any]]
"""Returns what all training processes passed to it, in their order. It may block, and is called in a thread."""


class NoIpc(RuntimeError):
    """Weights can't be sent over CUDA IPC, and probably not the next time either."""


class Shared(Protocol):
    """Memory of this process that a worker of the server can map."""

    tensor: Tensor
    """Bytes, of one dimension."""
    device_id: str
    """The worker's name of the device that the memory is on."""
    handle: dict[str, Any]
    """What the worker needs to map it, as JSON."""


class CudaShared:
    """A `Shared` on a GPU."""

    def __init__(self, size: int, device: torch.device) -> None:
        """Allocate this many bytes and export them."""
        from torch.multiprocessing.reductions import reduce_tensor

        self.tensor = torch.empty(size, dtype=torch.uint8, device=device)
        self.handle = encode_handle(reduce_tensor(self.tensor)[1])
        self.device_id = str(torch.cuda.get_device_properties(device).uuid)


@dataclass(slots=True)
class _Bucket:
    """Tensors in the shared memory, one after the other; the fields are vLLM's."""

    names: list[str] = field(default_factory=list[str])
    dtype_names: list[str] = field(default_factory=list[str])
    shapes: list[list[int]] = field(default_factory=list[list[int]])
    tensor_sizes: list[int] = field(default_factory=list[int])

    def append(self, name: str, tensor: Tensor) -> None:
        self.names.append(name)
        self.dtype_names.append(str(tensor.dtype).removeprefix("torch."))
        self.shapes.append(list(tensor.shape))
        self.tensor_sizes.append(tensor.nbytes)

    def update(self, handles: Mapping[str, Any]) -> dict[str, Any]:
        """Return the argument of the workers' `agentgym_map_weights`."""
        return {
            "names": self.names, "dtype_names": self.dtype_names, "shapes": self.shapes,
            "tensor_sizes": self.tensor_sizes, "handles": handles,
        }  # fmt: skip


class IpcTransfer:
    """The sending side, in each training process that samples from the server."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        gather: Gather,
        *,
        share: Callable[[int, torch.device], Shared] = CudaShared,
        bucket: int = SHARED_BYTES,
    ) -> None:
        """Share nothing yet.

        Args:
            device: The device of the weights in this process.
            dtype: The data type of the server's weights, in which floating-point tensors are sent.
            gather: Exchanges messages between all training processes.
            share: Allocates memory of a number of bytes on the device.
            bucket: Bytes of tensors that one request announces to the server, unless one tensor is larger.
        """
        self._device, self._dtype, self._gather, self._share = device, dtype, gather, share
        self._size = bucket
        self._shared: Shared | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._talk: asyncio.Future[Any] | None = None
        self._cancelled = False

    async def send(
        self, server: VllmHttp | None, weights: Weights, *, ready: Awaitable[Any] | None, label: str, meanwhile: str
    ) -> None:
        """Replace the weights of a server. All training processes must call this; if it fails, it fails in all.

        Each process makes a pass over the same tensors, unless it fails. If it is cancelled, it ends in all processes
        before it raises: none waits for another.

        Args:
            server: The server, in the process that talks to it; None in the others.
            weights: A whole model, on the device.
            ready: Waits until the server is available, in the process that talks to it.
            label: See `VllmHttp.replace_weights`.
            meanwhile: See `VllmHttp.replace_weights`.

        Raises:
            Away: when a server was lost.
            EngineGone: when the server of a process can't be used at all.
            NoIpc: when a process can't share its memory, or a server can't use it.
        """
        self._cancelled = False
        sending = asyncio.create_task(self._send(server, weights, ready, label, meanwhile))
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            self._cancelled = True
            if self._talk is not None:
                self._talk.cancel()
            await asyncio.wait({sending})
            sending.exception()  # retrieve it, since it isn't raised
            raise

    async def _send(
        self, server: VllmHttp | None, weights: Weights, ready: Awaitable[Any] | None, label: str, meanwhile: str
    ) -> None:
        tensors = _Rest(weights.tensors())
        try:
            await self._together(ready)
            await self._together(server and _begin(server, meanwhile))
            while (bucket := await self._filled(tensors)).names:
                handles = dict(await self._exchange(self._mapping))
                # The memory may only be overwritten once the workers have copied from that of all processes.
                await self._together(server and server.call_workers("agentgym_map_weights", bucket.update(handles)))
            self._release()  # the server allocates its cache again
            await self._together(server and _end(server, label))
        finally:
            self._release()

    async def _together(self, talk: Awaitable[Any] | None) -> None:
        """Wait until the processes that talk to servers are done, or have been cancelled."""
        error: Exception | None = None
        if talk is not None:
            self._talk = asyncio.ensure_future(talk)
            if self._cancelled:
                self._talk.cancel()
            try:
                with suppress(asyncio.CancelledError):  # `_agree` tells the others
                    await self._talk
            except Exception as raised:  # noqa: BLE001 - raised by `_agree`
                error = raised
            self._talk = None
        await self._agree(error)

    async def _agree(self, error: Exception | None) -> None:
        """Raise an error in all processes if there is one in any, of the same kind, so that all do the same next."""
        if error is None and self._cancelled:
            error = Away("it was cancelled")
        elif error is not None and not isinstance(error, Away | EngineGone):
            error = _no_ipc(error)
        told = await self._exchange((type(error).__name__, str(error)) if error is not None else None)
        if failures := dict(filter(None, told)):
            kind = next((kind for kind in (EngineGone, NoIpc) if kind.__name__ in failures), Away)
            raise kind("; ".join(dict.fromkeys(failures.values()))) from error

    @property
    def _mapping(self) -> tuple[str, dict[str, Any]]:
        """The device of the shared memory, and its handle."""
        assert self._shared is not None
        return self._shared.device_id, self._shared.handle

    async def _exchange(self, message: Any) -> list[Any]:
        return await asyncio.to_thread(self._gather, message)

    async def _filled(self, tensors: _Rest) -> _Bucket:
        """Copy the next tensors into the shared memory of each process; an empty bucket at the end."""
        bucket, error = _Bucket(), None
        try:
            bucket = await asyncio.to_thread(self._fill, tensors)
        except Exception as raised:  # noqa: BLE001 - CUDA's, or that of the weights; raised by `_agree`
            error = raised
        await self._agree(error)
        return bucket

    def _fill(self, tensors: _Rest) -> _Bucket:
        bucket, end = _Bucket(), 0
        with self._on_stream():
            for name, tensor in tensors:
                dtype = self._dtype if tensor.is_floating_point() else tensor.dtype
                size = tensor.numel() * dtype.itemsize
                # vLLM views each part as its type, so it must begin at a multiple of the type's size.
                if bucket.names and (end + size > self._size or end % dtype.itemsize):
                    tensors.put_back(name, tensor)
                    break
                part = self._memory(size)[end : end + size].view(dtype).view(tensor.shape)
                bucket.append(name, part.copy_(tensor.detach()))
                end += size
        if self._stream is not None:
            self._stream.synchronize()
        return bucket

    def _memory(self, size: int) -> Tensor:
        """Return the shared memory, with room for a tensor of this many bytes."""
        if self._shared is None or len(self._shared.tensor) < size:
            self._shared = None  # so that both aren't there at a time
            self._shared = self._share(max(size, self._size), self._device)
        return self._shared.tensor

    def _release(self) -> None:
        """Free the memory, and that of tensors that were gathered to be sent."""
        self._shared = None
        if self._stream is not None:
            torch.cuda.ipc_collect()
            torch.cuda.empty_cache()

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


class _Rest:
    """An iterator over tensors, of which the last one can be put back."""

    def __init__(self, tensors: Iterator[tuple[str, Tensor]]) -> None:
        self._tensors = tensors
        self._first: list[tuple[str, Tensor]] = []

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self

    def __next__(self) -> tuple[str, Tensor]:
        return self._first.pop() if self._first else next(self._tensors)

    def put_back(self, name: str, tensor: Tensor) -> None:
        self._first.append((name, tensor))


def _no_ipc(cause: Exception) -> NoIpc:
    error = NoIpc(str(cause) if isinstance(cause, Refused) else f"{type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error


async def _begin(server: VllmHttp, meanwhile: str) -> None:
    await server.begin_replacement(meanwhile, wakes=True)
    await server.init_weight_transfer({"packed": True})
    await server.start_weight_update()


async def _end(server: VllmHttp, label: str) -> None:
    await server.finish_weight_update()
    await server.end_replacement(label, wakes=True)
