"""A copy of an engine's weights in host memory that all training processes of a machine share.

The processes make a pass over the weights together, in which each has whole tensors. Each writes its part of them, and
engines read all. The memory is a file that exists in memory only: unlike /dev/shm, which containers limit to 64 MB by
default, it can be as large as the memory.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentgym_trainer.distributed import Ranks
from agentgym_trainer.models.weights import HostCopy, Weights

_ALIGNMENT = 64  # bytes


class MachineCopy:
    """The copy, as one of the processes writes and reads it. The next weights overwrite it."""

    def __init__(self) -> None:
        """Copy nothing yet. The memory is freed once no process of the machine has this object or a tensor of it."""
        self.shared = False
        """Whether the processes share memory, as is known from the first tensor of a pass on. They can't where there
        are no memory files, as on macOS, or where one of them may not open another's."""
        self._file: int | None = None
        self._joined = False
        self._mapped: mmap.mmap | None = None
        self._request: HostCopy | None = None
        self._layout: list[tuple[str, torch.dtype, torch.Size, int]] = []
        """Name, data type, shape and place of each tensor, in the order of the pass."""

    def request(self, by: HostCopy) -> None:
        """Have the next pass write a copy. Called by an engine of this process before it reads the first tensor.

        Floating-point tensors of whole models are kept in the data type of `by`, if that is the same for all engines of
        the machine.
        """
        self._request = by

    def written(self, weights: Weights) -> Iterator[tuple[str, Tensor]]:
        """Make a pass over weights and write this process's part of the copy, if an engine of the machine requests it.

        All processes must make the pass, from their main threads and to its end. The first and the last tensor wait for
        all: before the pass, no engine may read the last copy any more, and after it, this one is complete.

        Raises:
            RuntimeError: at the end, in all processes, when a part could not be written.
        """
        ranks = Ranks()
        if not self._joined:
            self._join(ranks)
        part, parts, dtype = self._agree(ranks)
        self._layout, end, failure = [], 0, ""
        for number, (name, tensor) in enumerate(weights.tensors()):
            if parts:
                kept = tensor.dtype if weights.adapter or not tensor.is_floating_point() else dtype or tensor.dtype
                self._layout.append((name, kept, tensor.shape, end))
                if number % parts == part and not failure:
                    try:
                        self._write(tensor, kept, end)
                    except Exception as error:  # noqa: BLE001 - the other processes need this pass to its end
                        failure = f"The weights could not be copied to host memory: {error!r}"
                end += -(-prod(tensor.shape) * kept.itemsize // _ALIGNMENT) * _ALIGNMENT
            yield name, tensor
        if self._file is not None and parts and part == 0:
            with suppress(OSError):
                os.ftruncate(self._file, end)  # the last copy may have been larger
        # Also waits until the others have written their parts.
        if failures := [text for text in ranks.gather([failure]) if text]:
            raise RuntimeError(failures[0])

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of the copy, which are valid until the next pass. This process has made its pass before."""
        assert self._file is not None
        size = os.fstat(self._file).st_size
        if self._mapped is None or len(self._mapped) != size:
            self._mapped = mmap.mmap(self._file, size)
        memory = torch.frombuffer(self._mapped, dtype=torch.uint8)
        for name, dtype, shape, place in self._layout:
            yield name, memory[place : place + prod(shape) * dtype.itemsize].view(dtype).view(shape)

    def _join(self, ranks: Ranks) -> None:
        """Have the first process of the machine create the memory, and all open it."""
        self._joined, first = True, ranks.index == ranks.first_here
        if first and hasattr(os, "memfd_create"):
            with suppress(OSError):  # a container may forbid it
                self._own(os.memfd_create("agentgym-weights", os.MFD_CLOEXEC))
        path = f"/proc/{os.getpid()}/fd/{self._file}"
        offers = ranks.gather([(path, _identity(self._file))])
        path, identity = offers[ranks.first_here]
        if not first and identity is not None:
            with suppress(OSError):
                if _identity(Path(path)) == identity:  # not if it is of a process in another container
                    self._own(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        opened = ranks.gather([(ranks.first_here, _identity(self._file))])
        self.shared = identity is not None and all(own == identity for at, own in opened if at == ranks.first_here)

    def _agree(self, ranks: Ranks) -> tuple[int, int, torch.dtype | None]:
        """Return the number of this process's part, the number of parts, which is 0 if there is no copy, and the type.

        Waits until all processes are here.
        """
        dtypes = [] if self._request is None else [self._request.dtype]
        everywhere = ranks.gather([(ranks.first_here, dtypes)])
        here = [wanted for first, wanted in everywhere if first == ranks.first_here]
        self._request, wanted = None, {dtype for wanted in here for dtype in wanted}
        parts = len(here) if wanted and self.shared else 0
        return ranks.index - ranks.first_here, parts, wanted.pop() if len(wanted) == 1 else None

    def _own(self, file: int) -> None:
        self._file = file
        weakref.finalize(self, os.close, file)

    def _write(self, tensor: Tensor, dtype: torch.dtype, place: int) -> None:
        assert self._file is not None
        data: Any = tensor.detach().to("cpu", dtype).contiguous().reshape(-1).view(torch.uint8).numpy()
        while len(data):
            count = os.pwrite(self._file, data, place)
            data, place = data[count:], place + count


def _identity(file: int | Path | None) -> tuple[int, int] | None:
    """Return what is the same for all descriptors and paths of a file, and of no other file."""
    if file is None:
        return None
    status = file.stat() if isinstance(file, Path) else os.fstat(file)
    return status.st_dev, status.st_ino
