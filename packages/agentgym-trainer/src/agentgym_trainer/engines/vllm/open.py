"""Open the engines `vllm` and `vllm-server` for a run."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import torch
from accelerate import PartialState

from agentgym_trainer.engines.base import Engine
from agentgym_trainer.engines.factory import EngineContext
from agentgym_trainer.engines.vllm.in_process import vllm_engine
from agentgym_trainer.engines.vllm.nccl_transfer import NcclTransfer, can_use_nccl
from agentgym_trainer.engines.vllm.pool import VllmPool
from agentgym_trainer.engines.vllm.process import VllmProcess, VllmServerSettings
from agentgym_trainer.engines.vllm.server import VllmServer


def open_in_process(context: EngineContext) -> Engine:
    """Return vLLM in this process.

    Raises:
        ImportError: when vLLM isn't installed.
        ValueError: when vLLM can't run the model or needs a GPU that isn't used, or the memory is too small.
    """
    return vllm_engine(
        context.name,
        context.settings.memory,
        end_id=context.end_id,
        max_context=context.max_context,
        dtype=context.dtype,
        lora_rank=context.lora_rank,
        device=context.device,
    )


def open_server(context: EngineContext) -> Engine:
    """Return the client of vLLM servers.

    All processes sample from all running servers (`engine.urls`), and each server gets the weights from one of them.
    Otherwise the first process of each machine starts a server for all its processes, and sends it the weights.

    Raises:
        ImportError: when a server has to be started and vLLM isn't installed.
    """
    urls, ranks = context.settings.urls, context.ranks
    run = ranks.broadcast(uuid4().hex)
    if urls:
        pushed = (number % ranks.count == ranks.index for number in range(len(urls)))
        servers = [_client(context, run, url, pushes) for url, pushes in zip(urls, pushed, strict=True)]
        return servers[0] if len(servers) == 1 else VllmPool(servers, dtype=context.dtype)
    own, pushes = _process(context), ranks.index == ranks.first_here
    started = ranks.gather([own.url])
    context.say(f"Starting a vLLM server, which takes a while; its log file is {own.log}.")
    return _client(context, run, own if pushes else started[ranks.first_here], pushes)


def _client(context: EngineContext, run: str, server: str | VllmProcess, pushes: bool) -> VllmServer:
    device = PartialState().device or torch.device("cpu")
    return VllmServer(
        server,
        run=run,
        end_id=context.end_id,
        max_context=context.max_context,
        pushes=pushes,
        patience=context.settings.patience,
        nccl=NcclTransfer(device) if pushes and can_use_nccl(device) else None,
    )


def _process(context: EngineContext) -> VllmProcess:
    settings = VllmServerSettings(
        Path(context.name),
        max_context=context.max_context,
        dtype=str(context.dtype).removeprefix("torch."),
        memory=context.settings.memory,
        devices=context.settings.devices,
        tensor_parallel=context.settings.tensor_parallel,
        lora_rank=context.lora_rank,
        seed=context.seed,
    )
    return VllmProcess(settings, context.folder / f"vllm-{context.ranks.index}.log")
