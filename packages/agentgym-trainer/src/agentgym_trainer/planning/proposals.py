"""Settings and hardware with which a run that doesn't fit would fit. Each proposal has been planned itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from agentgym_trainer.config import BaseConfig, EngineSettings, Lora, RLConfig
from agentgym_trainer.planning.engine_support import indivisible, largest_split
from agentgym_trainer.planning.hardware import Hardware
from agentgym_trainer.planning.phases import Plan, emulates_bf16, engine_bytes, make_plan
from agentgym_trainer.planning.sharding import shardable
from agentgym_trainer.planning.workload import Workload

_MOST = 3
"""Number of proposals."""
_MOST_GPUS = 128
_RANK = 32
_SHARE = 0.4
"""Share of a GPU that is given to an engine if there is room."""
_STEPS = 12
_Settings = TypeVar("_Settings", BaseConfig, EngineSettings)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A run that fits."""

    plan: Plan
    flags: tuple[str, ...]
    """Flags to add to the command."""
    moved: bool
    """Whether it needs other hardware, or another launcher, than the run that doesn't fit."""

    def __str__(self) -> str:
        """Describe the proposal in a few words."""
        flags = " ".join(self.flags)
        if not self.moved:
            return flags
        hardware = self.plan.hardware
        launcher = " with FSDP2" if hardware.sharded else ""
        return f"{hardware}{launcher}{f' and {flags}' if flags else ''}"


def propose(plan: Plan) -> list[Proposal]:
    """Return ways to make a run fit, the nearest first: other settings, an adapter, GPUs for the engine, more GPUs.

    An adapter may be one of quantized weights.
    """
    found: list[Proposal] = []
    for config, hardware in _variants(plan):
        fitting = _tuned(shardable(config) if hardware.sharded else config, hardware)
        if fitting is not None:
            proposal = Proposal(fitting, tuple(_flags(plan.config, fitting.config)), hardware != plan.hardware)
            if str(proposal) not in map(str, found):
                found.append(proposal)
        if len(found) == _MOST or (found and found[-1].moved and hardware.processes > plan.hardware.processes):
            break
    return found


def _variants(plan: Plan) -> Iterator[tuple[BaseConfig, Hardware]]:
    """Yield the run with other methods and hardware, whose settings aren't tuned yet."""
    config, hardware, shards = plan.config, plan.hardware, isinstance(plan.config, RLConfig)
    yield config, hardware
    if shards and hardware.processes > 1 and not hardware.sharded and hardware.on_gpu:
        yield config, replace(hardware, sharded=True)
    yield from _with_adapters(config, hardware)
    engine = config.engine
    if not hardware.on_gpu:
        return
    if engine.kind == "vllm" and hardware.processes > 1:
        half = hardware.processes // 2
        last = ",".join(str(gpu) for gpu in range(half, hardware.processes))
        apart = replace(engine, kind="vllm-server", devices=last, memory=0.9)
        if hardware.processes <= 8:
            yield replace(config, engine=apart), replace(hardware, processes=half, sharded=shards and half > 1)
            most = largest_split(Workload(config, hardware).shape.config, hardware.processes)
            split = _valid(engine, kind="vllm-server", tensor_parallel=most)
            if split is not None and most > 1:
                yield replace(config, engine=split), hardware
    count = 2 * hardware.processes
    while count <= _MOST_GPUS:
        yield config, replace(hardware, processes=count, sharded=shards)
        count *= 2


def _with_adapters(config: BaseConfig, hardware: Hardware) -> Iterator[tuple[BaseConfig, Hardware]]:
    """Yield the run with an adapter, and if that doesn't fit, with an adapter of quantized weights."""
    if config.model == "scratch" or config.lora.quantize != "off":
        return
    adapted = config if config.lora.rank else _valid(config, lora=Lora(rank=_RANK))
    if adapted is None:
        return
    if not config.lora.rank:
        yield adapted, hardware
    refused = hardware.sharded or config.engine.urls or Workload(config, hardware).critic == "separate"
    if isinstance(config, RLConfig) and not refused and _tuned(adapted, hardware) is None:
        yield replace(adapted, lora=replace(adapted.lora, quantize="nf4")), hardware


def _valid(settings: _Settings, **changes: Any) -> _Settings | None:
    """Return settings with these changes; None if they aren't valid together, as an adapter and `reference.sync`."""
    try:
        return replace(settings, **changes)
    except ValueError:
        return None


def _tuned(config: BaseConfig, hardware: Hardware) -> Plan | None:
    """Change settings that don't affect the result until the run fits; None if it doesn't fit with any."""
    for _ in range(_STEPS):
        plan = make_plan(config, hardware)
        if plan.fits:
            return plan
        smaller = _smaller(plan)
        if smaller is None:
            return None
        config = smaller
    return None


def _smaller(plan: Plan) -> BaseConfig | None:
    """Return the configuration with one setting changed that reduces a part of a phase that doesn't fit."""
    config, hardware = plan.config, plan.hardware
    model = Workload(config, hardware).shape.config
    if indivisible(config, model):
        split = largest_split(model, config.engine.tensor_parallel)
        return replace(config, engine=replace(config.engine, tensor_parallel=split))
    if config.engine.kind in ("vllm", "vllm-server") and emulates_bf16(Workload(config, hardware)):
        return replace(config, precision="auto")
    limit = hardware.gpu_bytes or hardware.host_bytes or math.inf
    too_large = {part.name for phase in plan.phases if phase.bytes > limit for part in phase.device}
    if ("engine" in too_large or not too_large) and (share := _share(plan)) is not None:
        return replace(config, engine=replace(config.engine, memory=share))
    if "AdamW's moments" in too_large and _can_offload(plan, limit):
        return replace(config, optimizer=replace(config.optimizer, offload=True))
    if "KV cache" in too_large:
        if hardware.on_gpu:
            return replace(config, engine=replace(config.engine, kind="vllm", memory=_SHARE))
        return replace(config, slots=config.slots // 2) if config.slots > 1 else None
    if "activations" not in too_large:
        return None
    work = Workload(config, hardware)
    if not work.checkpointing:
        return replace(config, gradient_checkpointing="on")
    row = work.longest if isinstance(config, RLConfig) else work.pack // 2
    micro = max(row, config.optimizer.micro_tokens // 2)
    if micro >= min(config.optimizer.micro_tokens, work.pack):
        return None
    return replace(config, optimizer=replace(config.optimizer, micro_tokens=micro))


def _can_offload(plan: Plan, limit: float) -> bool:
    """Whether a phase other than the update doesn't fit, and the moments could be in host memory meanwhile."""
    over = {phase.name for phase in plan.phases if phase.bytes > limit}
    allowed = plan.hardware.on_gpu and not plan.hardware.sharded and isinstance(plan.config, RLConfig)
    return allowed and not plan.config.optimizer.offload and not over & {"warm start", "update"}


def _share(plan: Plan) -> float | None:
    """Return another share of the GPU for vLLM with which it starts and everything fits; None if there is none."""
    hardware, engine = plan.hardware, plan.config.engine
    if not hardware.on_gpu or engine.kind not in ("vllm", "vllm-server") or engine.urls:
        return None
    gpu = hardware.gpu_bytes
    others = [
        phase.bytes - part.bytes for phase in plan.phases for part in phase.device if part.name == "engine"
    ]  # fmt: skip
    most, least = 1 - max(others, default=0.05 * gpu) / gpu, engine_bytes(Workload(plan.config, hardware)) / gpu
    wanted = min(max(_SHARE, math.ceil(20 * least) / 20), math.floor(20 * most) / 20)
    share = wanted if wanted >= least else math.floor(100 * most) / 100
    return share if share >= least and share != engine.memory else None


def _flags(before: BaseConfig, after: BaseConfig) -> Iterator[str]:
    """Yield the flags that turn one configuration into the other."""
    if after.gradient_checkpointing != before.gradient_checkpointing:
        yield f"--gradient-checkpointing {after.gradient_checkpointing}"
    if after.precision != before.precision:
        yield f"--precision {after.precision}"
    if after.optimizer.micro_tokens != before.optimizer.micro_tokens:
        yield f"--optimizer.micro-tokens {after.optimizer.micro_tokens}"
    if after.optimizer.offload != before.optimizer.offload:
        yield f"--optimizer.{'' if after.optimizer.offload else 'no-'}offload"
    if isinstance(before, RLConfig) and isinstance(after, RLConfig) and after.compile != before.compile:
        yield f"--{'' if after.compile else 'no-'}compile"
    if after.lora.rank != before.lora.rank:
        yield f"--lora.rank {after.lora.rank}"
    if after.lora.quantize != before.lora.quantize:
        yield f"--lora.quantize {after.lora.quantize}"
    if after.slots != before.slots:
        yield f"--slots {after.slots}"
    if after.engine.kind != before.engine.kind:
        yield f"--engine.kind {after.engine.kind}"
    if after.engine.tensor_parallel != before.engine.tensor_parallel:
        yield f"--engine.tensor-parallel {after.engine.tensor_parallel}"
    if after.engine.devices != before.engine.devices:
        yield f"--engine.devices {after.engine.devices}"
    if after.engine.memory != before.engine.memory:
        yield f"--engine.memory {after.engine.memory:g}"
