"""Groups over gloo in place of NCCL, for tests of weight transfers on CPUs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from agentgym_trainer.engines.vllm.nccl_transfer import NcclTransfer
from patience import PATIENCE
from torch.distributed import BroadcastOptions, ProcessGroupGloo, TCPStore


class GlooGroup:
    """A group of threads or processes that broadcasts tensors of CPUs, in place of vLLM's NCCL communicator."""

    def __init__(self, host: str, port: int, rank: int, size: int) -> None:
        """Join the group, and wait for the others."""
        timeout = timedelta(seconds=PATIENCE)
        store = TCPStore(host, port, size, is_master=rank == 0, timeout=timeout)
        self._group: Any = ProcessGroupGloo(store, rank, size, timeout)

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        options = BroadcastOptions()
        options.rootRank = src
        self._group.broadcast([tensor], options).wait()

    def destroy(self) -> None:
        self._group = None


def gloo_transfer() -> NcclTransfer:
    """Return the sending side of a transfer over gloo."""
    return NcclTransfer(torch.device("cpu"), join=lambda host, port, size, device: GlooGroup(host, port, 0, size))
