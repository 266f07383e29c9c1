"""Open the engines `vllm` and `vllm-server` for a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import distributed

from agentgym_trainer.distributed import thread_group
from agentgym_trainer.engines.base import Engine
from agentgym_trainer.engines.factory import EngineContext
from agentgym_trainer.engines.vllm.in_process import vllm_engine
from agentgym_trainer.engines.vllm.ipc_transfer import Gather, IpcTransfer
from agentgym_trainer.engines.vllm.nccl_transfer import NcclTransfer, can_use_nccl
from agentgym_trainer.engines.vllm.pool import VllmPool
from agentgym_trainer.engines.vllm.process import (
    IPC,
    NCCL,
    VllmProcess,
    VllmServerSettings,
    how_to_install,
    is_cpu_build,
)
from agentgym_trainer.engines.vllm.server import VllmServer

_HOW = {NCCL: "over NCCL", IPC: "over CUDA IPC", "tcp": "over TCP"}
_IF_OFFERED = " if they offer it, and otherwise over TCP"


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
        concurrent=context.concurrent,
    )


def open_server(context: EngineContext) -> Engine:
    """Return the client of vLLM servers.

    All processes sample from all running servers (`engine.urls`), and each server gets the weights from one of them.
    Otherwise the first process of each machine starts a server for all its processes, on the GPUs of `engine.devices`,
    or on those that train.

    Raises:
        ImportError: when a server has to be started and vLLM isn't installed.
        ValueError: when the weights can't be transferred as `engine.transfer` says, or the GPUs that train can't be
            divided into groups of `engine.tensor_parallel`.
    """
    settings, ranks = context.settings, context.ranks
    run = ranks.broadcast(uuid4().hex)
    transfer = _transfer(context)
    if settings.urls:
        context.say(f"The vLLM servers get weights {_HOW[transfer]}{_IF_OFFERED if transfer == NCCL else ''}.")
        pushed = (number % ranks.count == ranks.index for number in range(len(settings.urls)))
        servers = [
            _client(context, run, url, transfer, pushes) for url, pushes in zip(settings.urls, pushed, strict=True)
        ]
        return servers[0] if len(servers) == 1 else VllmPool(servers, dtype=context.dtype)
    shared = _on_gpu(context.device) and not settings.devices
    own, pushes = _process(context, transfer, shared=shared), ranks.index == ranks.first_here
    started = ranks.gather([own.url])
    place = ", on the GPUs that train" if shared else ""
    context.say(
        f"Starting a vLLM server{place}, which takes a while; its log file is {own.log}. It gets weights "
        f"{_HOW[transfer]}."
    )
    return _client(context, run, own if pushes else started[ranks.first_here], transfer, pushes, sleeps=shared)


def _on_gpu(device: torch.device) -> bool:
    """Whether this process trains on a GPU, and vLLM's build uses it."""
    return device.type == "cuda" and not is_cpu_build()


def _transfer(context: EngineContext) -> str:
    """Return how whole models reach the server: nccl, ipc or tcp.

    Raises:
        ValueError: when it isn't possible as `engine.transfer` says.
    """
    settings, device = context.settings, context.device
    asked = settings.transfer
    if asked == "ipc" and not _on_gpu(device):
        raise ValueError(
            "engine.transfer ipc shares a GPU's memory with a vLLM server on the same GPU, and this run trains on "
            f"{device.type}{' with the CPU build of vLLM' if is_cpu_build() else ''}; leave engine.transfer at auto."
        )
    if asked == "nccl" and not can_use_nccl(device):
        raise ValueError(
            "engine.transfer nccl needs a GPU and vLLM's CUDA build in the training process, which has the device "
            f"{device.type}; leave engine.transfer at auto, or see {how_to_install()}."
        )
    if asked != "auto":
        return asked
    if settings.urls or settings.devices:
        return NCCL if can_use_nccl(device) else "tcp"
    return IPC if _on_gpu(device) else "tcp"


def _client(
    context: EngineContext, run: str, server: str | VllmProcess, transfer: str, pushes: bool, *, sleeps: bool = False
) -> VllmServer:
    return VllmServer(
        server,
        run=run,
        end_id=context.end_id,
        max_context=context.max_context,
        pushes=pushes,
        patience=context.settings.patience,
        nccl=NcclTransfer(context.device) if pushes and transfer == NCCL else None,
        ipc=IpcTransfer(context.device, context.dtype, _gather(context)) if transfer == IPC else None,
        forced=context.settings.transfer == transfer,
        sleeps=sleeps,
        dtype=context.dtype,
    )


def _gather(context: EngineContext) -> Gather:
    """Return what exchanges messages between all processes in the thread of the engine."""
    count = context.ranks.count
    group = thread_group("weights") if count > 1 else None

    def gather(message: Any) -> list[Any]:
        parts: list[Any] = [message] * count
        if count > 1:
            distributed.all_gather_object(parts, message, group=group)
        return parts

    return gather


def _process(context: EngineContext, transfer: str, *, shared: bool) -> VllmProcess:
    settings = VllmServerSettings(
        Path(context.name),
        max_context=context.max_context,
        dtype=str(context.dtype).removeprefix("torch."),
        memory=context.settings.memory,
        devices=_training_gpus(context) if shared else context.settings.devices,
        tensor_parallel=context.settings.tensor_parallel,
        lora_rank=context.lora_rank,
        seed=context.seed,
        transfer=transfer if transfer != "tcp" else "",
        sleeps=shared,
    )
    return VllmProcess(settings, context.folder / f"vllm-{context.ranks.index}.log")


def _training_gpus(context: EngineContext) -> str:
    """Return the GPUs of the training processes of this machine, as in CUDA_VISIBLE_DEVICES.

    Raises:
        ValueError: when they can't be divided into groups of `engine.tensor_parallel`.
    """
    uuid = str(torch.cuda.get_device_properties(context.device).uuid)
    everywhere = context.ranks.gather([(context.ranks.first_here, f"GPU-{uuid}")])
    here = [gpu for machine, gpu in everywhere if machine == context.ranks.first_here]
    if len(here) % context.settings.tensor_parallel:
        raise ValueError(
            f"engine.tensor_parallel {context.settings.tensor_parallel} doesn't divide the {len(here)} GPUs of this "
            "machine that train; choose a divisor, or give the server GPUs of its own with engine.devices."
        )
    return ",".join(here)
