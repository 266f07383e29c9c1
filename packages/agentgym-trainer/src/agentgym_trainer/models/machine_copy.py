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
from math import prod
from typing import Any

import torch
from torch import Tensor

from agentgym_trainer.distributed import Ranks
from agentgym_trainer.models.weights import HostCopy, Weights

POSSIBLE = hasattr(os, "memfd_create")  # on Linux
_ALIGNMENT = 64  # bytes


class MachineCopy:
    """The copy, as one of the processes writes and reads it. It is overwritten by the next weights."""

    def __init__(self) -> None:
        """Copy nothing yet. The memory is freed once no process of the machine has this object or a tensor of it."""
        self._file: int | None = None
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
            OSError: at the end, in all processes, when a part could not be written.
        """
        ranks = Ranks()
        part, parts, dtype = self._agree(ranks)
        self._layout, end, failure = [], 0, ""
        for number, (name, tensor) in enumerate(weights.tensors()):
            if parts:
                kept = tensor.dtype if weights.adapter or not tensor.is_floating_point() else dtype or tensor.dtype
                self._layout.append((name, kept, tensor.shape, end))
                if number % parts == part and not failure:
                    try:
                        self._write(tensor, kept, end)
                    except OSError as error:  # the other processes need this pass to its end
                        failure = f"The weights could not be copied to host memory: {error}."
                end += -(-prod(tensor.shape) * kept.itemsize // _ALIGNMENT) * _ALIGNMENT
            yield name, tensor
        # Also waits until the others have written their parts.
        if failures := [text for text in ranks.gather([failure]) if text]:
            raise OSError(failures[0])

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of the copy, which are valid until the next pass. This process has made its pass before."""
        assert self._file is not None
        size = os.fstat(self._file).st_size
        if self._mapped is None or len(self._mapped) != size:
            self._mapped = mmap.mmap(self._file, size)
        for name, dtype, shape, place in self._layout:
            yield name, torch.frombuffer(self._mapped, dtype=dtype, count=prod(shape), offset=place).view(shape)

    def _agree(self, ranks: Ranks) -> tuple[int, int, torch.dtype | None]:
        """Return the number of this process's part, the number of parts, which is 0 if there is no copy, and the type.

        Waits until all processes are here.
        """
        if POSSIBLE and self._file is None and ranks.index == ranks.first_here:
            self._own(os.memfd_create("agentgym-weights", os.MFD_CLOEXEC))
        dtypes = [] if self._request is None else [self._request.dtype]
        everywhere = ranks.gather([(ranks.first_here, f"/proc/{os.getpid()}/fd/{self._file}", dtypes)])
        here = [(file, wanted) for first, file, wanted in everywhere if first == ranks.first_here]
        self._request, wanted = None, {dtype for _, wanted in here for dtype in wanted}
        if not wanted:
            return 0, 0, None
        if self._file is None:
            self._own(os.open(here[0][0], os.O_RDWR | os.O_CLOEXEC))
        return ranks.index - ranks.first_here, len(here), wanted.pop() if len(wanted) == 1 else None

    def _own(self, file: int) -> None:
        self._file = file
        weakref.finalize(self, os.close, file)

    def _write(self, tensor: Tensor, dtype: torch.dtype, place: int) -> None:
        assert self._file is not None
        data: Any = tensor.detach().to("cpu", dtype).contiguous().reshape(-1).view(torch.uint8).numpy()
        while len(data):
            count = os.pwrite(self._file, data, place)
            data, place = data[count:], place + count
