"""What code leaves behind in memory, told by its allocations: the size of a process depends on the past as well."""

from __future__ import annotations

import ctypes
import gc
import tracemalloc
from collections.abc import Callable


def growth(do: Callable[[], object]) -> int:
    """Bytes of Python's memory that a second `do()` leaves behind; the first fills what is cached."""
    tracemalloc.start()
    try:
        taken: list[int] = []
        for _ in range(2):
            do()
            gc.collect()
            taken.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    return taken[1] - taken[0]


class _Mallinfo(ctypes.Structure):
    """What glibc's `mallinfo2` gives."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "ford", "keep")
    )


def allocated() -> int:
    """Bytes of all blocks that this process holds, those of torch's tensors among them."""
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return info.uordblks + info.hblkhd
