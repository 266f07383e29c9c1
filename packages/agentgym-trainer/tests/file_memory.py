"""Shared memory over mapped files in place of CUDA IPC, for tests of weight transfers on CPUs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from agentgym_trainer.engines.vllm.ipc_handles import encode_handle
from agentgym_trainer.engines.vllm.ipc_transfer import Gather, IpcTransfer
from torch import Tensor


class FileShared:
    """A `Shared` in a file. The file is removed with the last reference to the memory."""

    def __init__(self, size: int, device_id: str) -> None:
        descriptor, name = tempfile.mkstemp(prefix="shared-")
        os.close(descriptor)
        self._path = Path(name)
        self.tensor = torch.from_file(name, shared=True, size=size, dtype=torch.uint8)
        self.device_id = device_id
        self.handle = encode_handle(cuda_arguments(name.encode(), size))

    def __del__(self) -> None:
        self._path.unlink()


def cuda_arguments(memory: bytes, size: int) -> tuple[Any, ...]:
    """Return what torch's `reduce_tensor` does for a buffer of bytes on a GPU, with this handle of the memory."""
    return (
        torch.Tensor, torch.Size([size]), (1,), 0, torch.storage.TypedStorage, torch.uint8, 3, memory, size, 4096,
        False, b"/torch_1_2_3", 7, b"\x00event\xff", True,
    )  # fmt: skip


def map_file(*arguments: Any) -> Tensor:
    """Return the memory of a `FileShared`, as torch's `rebuild_cuda_tensor` does for one on a GPU."""
    shape, memory = arguments[1], arguments[7]
    return torch.from_file(memory.decode(), shared=True, size=shape[0], dtype=torch.uint8)


def file_transfer(
    gather: Gather | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    device_id: str = "device-0",
    bucket: int = 2**20,
    share: Callable[[int, torch.device], Any] | None = None,
) -> IpcTransfer:
    """Return the sending side of a transfer over files."""

    def shared(size: int, device: torch.device) -> FileShared:
        return FileShared(size, device_id)

    alone: Gather = lambda message: [message]  # noqa: E731
    return IpcTransfer(torch.device("cpu"), dtype, gather or alone, share=share or shared, bucket=bucket)
