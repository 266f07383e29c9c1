"""Memory growth of code, measured by allocations: the size of a process also depends on its history."""

from __future__ import annotations

import ctypes
import gc
import tracemalloc
from collections.abc import Callable


def memory_growth(do: Callable[[], object]) -> int:
    """Return the bytes of Python memory that a second `do()` leaves allocated; the first one fills caches."""
    tracemalloc.start()
    try:
        allocations: list[int] = []
        for _ in range(2):
            do()
            gc.collect()
            allocations.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    return allocations[1] - allocations[0]


class _Mallinfo(ctypes.Structure):
    """The struct that glibc's `mallinfo2` returns."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "ford", "keep")
    )


def allocated_bytes() -> int:
    """Return the bytes of all blocks allocated in this process, including those of torch's tensors."""
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return info.uordblks + info.hblkhd
