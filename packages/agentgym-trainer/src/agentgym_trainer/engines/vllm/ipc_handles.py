"""Handles of shared GPU memory as JSON, so that no vLLM server has to accept pickles.

This module imports nothing else of this package, so that a server's workers don't either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def encode_handle(arguments: Sequence[Any]) -> dict[str, Any]:
    """Return the arguments of torch's `rebuild_cuda_tensor` for a whole buffer of bytes as JSON; bytes are hex."""
    _, shape, _, start, _, _, _, memory, size, offset, _, counter, counter_offset, event, waits = arguments
    assert (tuple(shape), start) == ((size,), 0), "the tensor must be a whole storage of bytes"
    return {
        "memory": memory.hex(), "size": size, "offset": offset, "counter": counter.hex(),
        "counter_offset": counter_offset, "event": event.hex(), "waits": waits,
    }  # fmt: skip


def decode_handle(handle: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of `rebuild_cuda_tensor` for a handle of `encode_handle`, with 0 as the device's index."""
    memory, counter, event = (bytes.fromhex(handle[name]) for name in ("memory", "counter", "event"))
    size = int(handle["size"])
    return (
        torch.Tensor, (size,), (1,), 0, torch.storage.TypedStorage, torch.uint8, 0, memory, size,
        int(handle["offset"]), False, counter, int(handle["counter_offset"]), event, bool(handle["waits"]),
    )  # fmt: skip
