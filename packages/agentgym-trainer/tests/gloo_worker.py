"""An extension of vLLM's workers for servers on a CPU.

It replaces NCCL in vLLM's own weight transfer with gloo, and can make the model slow.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from agentgym_trainer.engines.vllm.worker import WeightReceiver
from gloo_group import GlooGroup
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine


class _GlooEngine(NCCLWeightTransferEngine):
    """vLLM's engine with another group. Requests, their checks and the reload of the model are vLLM's."""

    def init_transfer_engine(self, init_info: Any) -> None:
        assert not init_info.packed
        rank = init_info.rank_offset + self.parallel_config.rank
        self.group = GlooGroup(init_info.master_address, init_info.master_port, rank, init_info.world_size)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        info = self.parse_update_info(update_info)
        for name, dtype, shape in zip(info.names, info.dtype_names, info.shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            self.group.broadcast(tensor, src=0)
            self.model.load_weights([(name, tensor)])


class GlooReceiver(WeightReceiver):
    """The extension; importing its module replaces vLLM's engine."""

    def lengthen_steps(self, seconds: float) -> None:
        """Have every step of the model take this much longer from now on."""
        runner = self.model_runner

        def execute_late(*args: Any, **kwargs: Any) -> Any:
            time.sleep(seconds)
            return type(runner).execute_model(runner, *args, **kwargs)

        runner.execute_model = execute_late


WeightTransferEngineFactory._registry["nccl"] = lambda: _GlooEngine
