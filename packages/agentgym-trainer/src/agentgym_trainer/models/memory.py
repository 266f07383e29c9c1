"""Memory of models: its peak, and what they leave behind: the KV cache of idle trajectories, freed memory that the
process keeps, and pinned host memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_IDLE_ON_CPU = 2**31
_IDLE_ON_GPU = 0.1
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for all GPUs."""
_KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256", "LRU_CACHE_CAPACITY": "256"}
"""Capacities of the caches of oneDNN and of ideep, through which torch calls it."""


def idle_cache_bytes(gpu_bytes: float) -> float:
    """Return how much KV cache the transformers engine keeps of trajectories that it isn't sampling.

    Args:
        gpu_bytes: Memory of the GPU; 0 on the CPU.

    Returns:
        Bytes if keys and values are float32; half as much if they are bfloat16.
    """
    return _IDLE_ON_GPU * gpu_bytes if gpu_bytes else _IDLE_ON_CPU


def kept_rows(concurrent: int) -> int:
    """Return of how many trajectories that have ended the transformers engine may keep the KV cache."""
    return max(4, concurrent // 4)


def limit_kernel_caches() -> None:
    """Let torch keep CPU kernels for 256 shapes of matrices in bfloat16 instead of 1,024, unless the environment
    variables set another number.

    Call this before the first of them is multiplied. Packs differ in length, and the kernels of each shape keep up to
    megabytes. Decoding up to 64 rows needs about 256 shapes; with fewer kernels it is slower.
    """
    for name, capacity in _KERNELS.items():
        os.environ.setdefault(name, capacity)


def pin_in_place(tensor: Tensor) -> None:
    """Pin the host memory of a tensor until it is freed, so that copies from and to a GPU are fast.

    torch's `pin_memory` would round each tensor up to a power of two, in all up to twice its bytes.

    Args:
        tensor: A tensor on the CPU, in a process that uses CUDA.

    Raises:
        RuntimeError: CUDA can't pin it.
    """
    import torch

    runtime: Any = torch.cuda.cudart()
    storage = tensor.untyped_storage()
    address = storage.data_ptr()
    if code := int(runtime.cudaHostRegister(address, storage.nbytes(), _PORTABLE)):
        raise RuntimeError(f"CUDA can't pin {storage.nbytes()} bytes of host memory: cudaError {code}.")
    # Not at exit, when CUDA's context is gone.
    weakref.finalize(storage, runtime.cudaHostUnregister, address).atexit = False


def peak_memory() -> dict[str, float]:
    """Return in GB the most memory that this process has had so far, `host`, and on a GPU the most that its tensors
    have had since the last call, `gpu`.
    """
    import torch

    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    peak = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9}
    if torch.cuda.is_initialized():
        peak["gpu"] = torch.cuda.max_memory_allocated() / 1e9
        torch.cuda.reset_peak_memory_stats()
    return peak


def trim_heap() -> None:
    """Return freed host memory to the operating system: glibc keeps freed tensors of a few megabytes."""
    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
