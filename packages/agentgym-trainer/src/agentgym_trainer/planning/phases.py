"""The memory of each phase of a run, per process, and what doesn't fit. Arithmetic on what `workload` describes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from agentgym_trainer.config import BaseConfig, RLConfig
from agentgym_trainer.models.memory import idle_cache_bytes, kept_rows
from agentgym_trainer.models.weights import SHARED_BYTES
from agentgym_trainer.planning.activations import Activations
from agentgym_trainer.planning.engine_support import indivisible
from agentgym_trainer.planning.hardware import Hardware
from agentgym_trainer.planning.sharding import check_sharding
from agentgym_trainer.planning.workload import Workload

CONTEXT = 1.2e9
"""Bytes of a GPU for CUDA's context, cuBLAS's workspaces and NCCL's buffers."""
ASLEEP = 1.0e9
"""Bytes of a GPU that vLLM keeps while it sleeps, such as those of CUDA graphs."""
ENGINE_WORK = 2.0e9
"""Bytes that vLLM needs beyond weights and cache: activations of a prefill and CUDA graphs."""
FRAGMENTATION = 0.1
"""Share by which the allocator of a GPU exceeds the bytes of activations."""
PROCESS, GPU_PROCESS, ENGINE_PROCESS = 1.0e9, 4.0e9, 3.0e9
"""Bytes of host memory of a process with torch and transformers, on a CPU or a GPU, and of vLLM in it."""
GPUS_PER_MACHINE = 8
_MOMENTS = "AdamW's moments"
_COPY = "engine's weights"
_SAVED_FROM = ("rollout", "log-probs", "update", "weight load", "checkpoint")
"""The phases during which a checkpoint may be written in the background."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the memory of a phase."""

    name: str
    bytes: float
    certain: bool = True
    """False: an upper bound, which only episodes of maximum length reach."""


@dataclass(frozen=True, slots=True)
class Phase:
    """The memory of one process in a phase of the run."""

    name: str
    device: tuple[Part, ...]
    """On the process's GPU; on the CPU if the run trains there."""
    first_host: float = 0.0
    """Bytes of host memory of the first process of a machine; 0 on a CPU, where `device` has them."""
    other_host: float = 0.0
    """Bytes of host memory of each other process."""

    @property
    def bytes(self) -> float:
        """All bytes on the device."""
        return sum(part.bytes for part in self.device)

    @property
    def certain_bytes(self) -> float:
        """The bytes on the device without upper bounds."""
        return sum(part.bytes for part in self.device if part.certain)


@dataclass(frozen=True)
class Plan:
    """The memory that a run needs on some hardware."""

    config: BaseConfig
    hardware: Hardware
    phases: tuple[Phase, ...]
    problems: tuple[str, ...]
    """What doesn't fit, as sentences."""
    certain: bool
    """Whether the run can't work even if no upper bound is reached."""

    @property
    def fits(self) -> bool:
        """Whether everything fits."""
        return not self.problems

    def phase(self, name: str) -> Phase:
        """Return a phase by its name."""
        return next(phase for phase in self.phases if phase.name == name)

    def host_bytes(self, phase: Phase) -> float:
        """Return the bytes of host memory of a machine in a phase."""
        processes = min(self.hardware.processes, GPUS_PER_MACHINE)
        if not self.hardware.on_gpu:
            return self.hardware.processes * phase.bytes
        return phase.first_host + (processes - 1) * phase.other_host


def make_plan(config: BaseConfig, hardware: Hardware) -> Plan:
    """Compute the memory of each phase of a run.

    Raises:
        UsageError: The model is unknown, or can't be trained with these settings.
    """
    check_sharding(config, sharded=hardware.sharded)
    work = Workload(config, hardware)
    phases = tuple(_Phases(work).all())
    draft = Plan(config, hardware, phases, (), certain=False)
    too_small = tuple(_engine_problems(work))
    over = [phase for phase in phases if phase.bytes > (hardware.gpu_bytes or float("inf"))]
    host = [phase for phase in phases if draft.host_bytes(phase) > (hardware.host_bytes or float("inf"))]
    problems = [*too_small]
    if over:
        worst = max(over, key=lambda phase: phase.bytes)
        problems.append(
            f"{worst.name} needs {_gb(worst.bytes)} on each GPU, which has {_gb(hardware.gpu_bytes)}: {_listed(worst)}."
        )
    if host and hardware.host_bytes:
        worst = max(host, key=draft.host_bytes)
        parts = f": {_listed(worst)}" if not hardware.on_gpu else ""
        problems.append(
            f"{worst.name} needs {_gb(draft.host_bytes(worst))} of host memory, and the machine has "
            f"{_gb(hardware.host_bytes)}{parts}."
        )
    certain = bool(too_small) or any(phase.certain_bytes > hardware.gpu_bytes for phase in over)
    return Plan(config, hardware, phases, tuple(problems), certain)


def _engine_problems(work: Workload) -> Iterator[str]:
    """Yield sentences if the engine's share of a GPU is too small, or its GPUs or the model can't be divided."""
    engine = work.config.engine
    if problem := indivisible(work.config, work.shape.config):
        yield problem
    if not work.hardware.on_gpu or engine.kind not in ("vllm", "vllm-server") or engine.urls:
        return
    if emulates_bf16(work):
        yield (
            "vLLM computes in bfloat16 only on GPUs of compute capability 8.0 and above, and those of "
            f"{work.hardware} are below that."
        )
    processes = min(work.hardware.processes, GPUS_PER_MACHINE)
    if not engine.devices and processes % engine.tensor_parallel:
        yield (
            f"The server is on the {processes} GPUs of a machine that train, which engine.tensor_parallel "
            f"{engine.tensor_parallel} doesn't divide."
        )
    share, needed = engine.memory * work.hardware.gpu_bytes, engine_bytes(work)
    if share < needed:
        yield (
            f"The engine needs {_gb(needed)} for its weights, the cache of one context and its work, but "
            f"engine.memory {engine.memory:g} gives it {_gb(share)}."
        )


def emulates_bf16(work: Workload) -> bool:
    """Whether a run computes in bfloat16 on GPUs that only emulate it, which vLLM refuses."""
    return work.hardware.on_gpu and not work.hardware.bf16 and work.dtype == torch.bfloat16


def engine_bytes(work: Workload) -> float:
    """Return the least memory of a GPU with which vLLM starts, in bytes."""
    split = work.config.engine.tensor_parallel
    cache = work.cache_bytes(1) / min(split, work.shape.key_heads)  # more GPUs than heads have copies of them
    return work.shape.weights * work.dtype.itemsize / split + cache + ENGINE_WORK


@dataclass(frozen=True)
class _Phases:
    """Computes the phases of a run."""

    work: Workload

    def all(self) -> Iterator[Phase]:
        """Yield the phases in their order."""
        work, config = self.work, self.work.config
        idle, awake, asleep = self._idle(), self._engine(awake=True), self._engine(awake=False)
        if isinstance(config, RLConfig) and config.warm_start.episodes:
            yield self._phase("warm start", self._warm_start())
        if work.rounds:
            yield self._phase("rounding", [*self._on_cpu("model", work.half_bytes), self._process(), self._largest(8)])
        loaded = [part for part in idle if part.name != _MOMENTS]
        yield self._phase("load", [*loaded, self._loading()])
        yield self._phase("engine", [*loaded, *(part for part in awake if part.certain)])
        yield self._phase("rollout", [*idle, *awake])
        if isinstance(config, RLConfig) and self._scores(config):
            yield self._phase("log-probs", [*idle, *asleep, *self._scoring()])
        gradients = self._sharded("gradients", 4.0 * work.trained)
        moments = self._sharded(_MOMENTS, 8.0 * work.trained)
        updating = self._updating(work.update_activations(), work.trained)
        yield self._phase("update", [*loaded, moments, gradients, *asleep, *updating])
        if self._loads():
            yield self._phase("weight load", [*idle, *self._receiving(), self._largest(work.dtype.itemsize)])
        yield self._phase("checkpoint", [*idle, *asleep, self._largest(work.dtype.itemsize)])
        if (work.quantized or work.hardware.sharded) and config.evaluation.test:
            # The initial and the final model, whole and not quantized. Engines with weights of their own load them from
            # host memory if training shards them.
            others = [part for part in awake if part.name != _COPY]
            weights = [] if self._tests_from_host() else [Part("weights", work.half_bytes)]
            yield self._phase("test", [*weights, self._process(), *others])

    def _scores(self, config: RLConfig) -> bool:
        algorithm = config.async_rollout.corrected(config.algorithm)
        scored = algorithm.needs_reference or algorithm.needs_old_logprobs or algorithm.needs_critic
        return scored or bool(config.distillation.teacher)

    def _scoring(self) -> list[Part]:
        """The memory of a pass for log-probabilities, of the policy or of a teacher that needs more."""
        work, teacher = self.work, self.work.teacher
        passes = [self._passing(work.scoring_activations(), backward=False)]
        if teacher is not None:
            passes.append(_Phases(teacher)._passing(teacher.frozen_activations(), backward=False))
        return max(passes, key=lambda parts: sum(part.bytes for part in parts))

    def _loading(self) -> Part:
        """A whole tensor of the policy, or of a teacher or a reference that has a larger one."""
        parts, work = [self._largest(4)], self.work
        if work.teacher:
            parts.append(_Phases(work.teacher)._largest(work.dtype.itemsize))
        if work.reference:
            parts.append(_Phases(work.reference)._largest(work.frozen_dtype.itemsize))
        return max(parts, key=lambda part: part.bytes)

    def _idle(self) -> list[Part]:
        """What the learner holds while it does nothing, after the first update."""
        parts = [self._sharded("weights", self.work.weight_bytes)]
        if self.work.reference_bytes:
            parts.append(self._sharded("reference", self.work.reference_bytes))
        if self.work.teacher_bytes:
            parts.append(self._sharded("teacher", self.work.teacher_bytes))
        if not self.work.offloads:
            parts.append(self._sharded(_MOMENTS, 8.0 * self.work.trained))
        return [*parts, self._process()]

    def _process(self) -> Part:
        return Part("CUDA context", CONTEXT) if self.work.hardware.on_gpu else Part("process", PROCESS)

    def _warm_start(self) -> list[Part]:
        """The imitation before reinforcement learning trains all weights, without reference, critic or engine."""
        weights = self.work.shape.weights
        static = [self._sharded(name, size * weights) for name, size in
                  (("weights", 4.0), (_MOMENTS, 8.0), ("gradients", 4.0))]  # fmt: skip
        return [*static, self._process(), *self._updating(self.work.imitation_activations(), weights)]

    def _updating(self, activations: Activations, trained: int) -> list[Part]:
        """The update's memory beyond weights, gradients and moments."""
        hardware = self.work.hardware
        replicated = hardware.processes > 1 and not hardware.sharded
        buckets = [Part("DDP's buckets", 4.0 * trained)] if replicated else []
        return buckets + self._passing(activations, backward=True)

    def _passing(self, activations: Activations, *, backward: bool) -> list[Part]:
        """The memory of a pass: activations, a layer that is dequantized for it, and what FSDP2 gathers for it."""
        dequantized = Part("a dequantized layer", float(self.work.dtype.itemsize * self.work.shape.widest))
        layer = [dequantized] if self.work.quantized else []
        if not self.work.hardware.on_gpu:
            return [Part("activations", activations.peak), *layer]
        parts = [Part("activations", (1 + FRAGMENTATION) * activations.peak), *layer]
        if self.work.hardware.sharded:
            parts.append(Part("gathered weights", self._gathered(backward=backward)))
        return parts

    def _gathered(self, *, backward: bool) -> float:
        """Bytes that FSDP2 gathers: all weights outside of the layers, the current layer and the next one.

        In the backward pass, their gradients are there too, and a float32 copy of those that are being reduced.
        """
        work, size = self.work, self.work.dtype.itemsize
        trunks = 2 if work.critic == "separate" else 1
        root, layer = float(trunks * work.shape.root), float(work.shape.layer)
        if not backward or work.adapter:
            return size * (root + 2 * layer)
        return 2 * size * root + max(layer * (3 * size + 2 * 4), 4 * root)

    def _engine(self, *, awake: bool) -> list[Part]:
        """The engine's memory on the GPU of a training process, or on the CPU."""
        work, engine = self.work, self.work.config.engine
        on_gpu = work.hardware.on_gpu
        if engine.kind == "transformers":
            copied = float(work.dtype.itemsize * work.shape.weights) if work.hardware.sharded else work.weight_bytes
            parts = [Part(_COPY, copied)] if self._copies() else []
            idle = work.cache_bytes(kept_rows(work.concurrent))
            if isinstance(work.config, RLConfig) and (work.config.harness or work.config.harness_command):
                idle = idle_cache_bytes(work.hardware.gpu_bytes) * work.dtype.itemsize / 4
            # Rows grow by a quarter at a time in length.
            cache = 1.25 * (work.cache_bytes(work.concurrent) + idle)
            return [*parts, Part("KV cache", cache, certain=False)] if awake else parts
        if engine.kind not in ("vllm", "vllm-server") or engine.urls or engine.devices:
            return []
        if not on_gpu:
            size = work.dtype.itemsize * work.shape.weights + engine.memory * 2**30
            return [Part("engine", size)]
        own = [Part("server's CUDA context", CONTEXT)] if engine.kind == "vllm-server" else []
        if self._sleeps() and not awake:
            return [*own, Part("engine asleep", ASLEEP)]
        return [*own, Part("engine", engine.memory * work.hardware.gpu_bytes)]

    def _sleeps(self) -> bool:
        """Whether an engine on the GPUs that train frees its memory for the learner."""
        config = self.work.config
        return not (isinstance(config, RLConfig) and config.async_rollout.max_staleness)

    def _receiving(self) -> list[Part]:
        """The engine's memory while it loads weights: after it has slept, vLLM has no cache yet."""
        work, engine = self.work, self.work.config.engine
        asleep = self._engine(awake=False)
        shared = work.hardware.on_gpu and engine.kind in ("vllm", "vllm-server") and bool(asleep)
        size = work.dtype.itemsize
        # Of a server's CUDA IPC, beside the whole tensor that is copied into it.
        buffer = (
            max(float(SHARED_BYTES), float(size * work.shape.largest))
            if shared and engine.kind == "vllm-server"
            else 0.0
        )
        buffer = buffer if engine.transfer != "tcp" else 0.0
        # vLLM copies each buffer's tensors before it loads them.
        parts = [Part("shared buffer", buffer), Part("received tensors", buffer)]
        if not shared or not self._sleeps():
            return [*parts, *(part for part in self._engine(awake=True) if part.certain)]
        return [*parts, Part(_COPY, size * work.shape.weights / engine.tensor_parallel), *asleep]

    def _copies(self) -> bool:
        """Whether the engine `transformers` has weights of its own."""
        config = self.work.config
        overlapping = isinstance(config, RLConfig) and config.async_rollout.max_staleness > 0
        return overlapping or self.work.hardware.sharded

    def _tests_from_host(self) -> bool:
        return self.work.hardware.sharded and self.work.config.engine.kind != "transformers"

    def _loads(self) -> bool:
        """Whether whole weights are loaded into the engine after an update."""
        return not self.work.adapter and (self.work.config.engine.kind != "transformers" or self._copies())

    def _phase(self, name: str, device: list[Part]) -> Phase:
        """Add the host memory of the processes to a phase."""
        if not self.work.hardware.on_gpu and name in _SAVED_FROM:
            device = [*device, Part("checkpoint in the background", self.work.copied_bytes)]
        parts = tuple(part for part in device if part.bytes)
        if not self.work.hardware.on_gpu:
            return Phase(name, parts)
        everyone, first = self._host(name)
        return Phase(name, parts, everyone + first, everyone)

    def _host(self, name: str) -> tuple[float, float]:
        """Return the bytes of host memory of each process, and what the first one needs beyond that."""
        work, engine = self.work, self.work.config.engine
        everyone, first = GPU_PROCESS, 0.0
        here = engine.kind == "vllm" or (engine.kind == "vllm-server" and not engine.urls and not engine.devices)
        if here and name not in ("warm start", "rounding", "load"):
            everyone += ENGINE_PROCESS
            if work.adapter and self._sleeps() and name in ("log-probs", "update", "checkpoint"):
                # While it sleeps, vLLM has the adapter's base model in host memory. Other weights are dropped.
                everyone += work.dtype.itemsize * work.shape.weights / engine.tensor_parallel
        started = name in _SAVED_FROM
        if started and work.copied_bytes:
            everyone += work.copied_bytes if work.hardware.sharded else 0.0
            first += 0.0 if work.hardware.sharded else work.copied_bytes
        if work.offloads and started:
            everyone += 8.0 * work.trained
        if started and self._loads() and self._copies():
            # Of weights that another pass would have to gather again (`models.machine_copy.MachineCopy`).
            first += float(work.dtype.itemsize * work.shape.weights)
        first += work.half_bytes if name == "rounding" else 0.0
        everyone += work.half_bytes if name == "test" and self._tests_from_host() else 0.0
        sharded, models = work.hardware.sharded, work.weight_bytes + work.reference_bytes + work.teacher_bytes
        if name == "load" and sharded:
            first = models
        elif sharded and (name == "checkpoint" or (started and work.copied_bytes)):
            # The model's own files; of a model with an adapter, only that.
            first += 4.0 * work.trained if work.adapter else float(work.dtype.itemsize * work.shape.weights)
        elif name == "checkpoint" and not work.copied_bytes:
            first += 4.0 * work.trained
        return everyone, first

    def _on_cpu(self, name: str, size: float) -> list[Part]:
        """A part that is always in host memory, which only is the device if the run trains on the CPU."""
        return [] if self.work.hardware.on_gpu else [Part(name, size)]

    def _sharded(self, name: str, size: float) -> Part:
        return Part(name, size / self.work.shards)

    def _largest(self, size: float) -> Part:
        """A whole tensor on its way from or to another place, with `size` bytes for each weight."""
        return Part("a tensor in transit", size * self.work.shape.largest if self.work.hardware.on_gpu else 0.0)


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def _listed(phase: Phase) -> str:
    parts = sorted((part for part in phase.device if part.bytes >= 5e7), key=lambda part: -part.bytes)
    return ", ".join(f"{part.name} {part.bytes / 1e9:.1f}" for part in parts)
