"""What a run holds in memory, from its configuration and hardware: weights, passes of the model and the engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from accelerate.utils import is_bf16_available

from agentgym_trainer.config import BaseConfig, Distillation, DPOConfig, Lora, Reference, RLConfig
from agentgym_trainer.models.quantization import BYTES_PER_WEIGHT
from agentgym_trainer.planning.activations import Activations, Pass, measure
from agentgym_trainer.planning.hardware import Hardware
from agentgym_trainer.planning.shapes import Shape, adapter_weights, count_weights, find_config

_BLOCKS = 1024
"""Longest segment whose attention weights are stored in half precision on a CPU (`models.attention`)."""
_TYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Workload:
    """A run on some hardware."""

    config: BaseConfig
    hardware: Hardware

    @cached_property
    def shape(self) -> Shape:
        """The model's numbers of weights.

        Raises:
            UsageError: The model is unknown.
        """
        return count_weights(find_config(self.config))

    @cached_property
    def dtype(self) -> torch.dtype:
        """The data type that the model computes in."""
        if self.config.precision != "auto":
            return _TYPES[self.config.precision]
        if self.hardware.on_gpu:
            return torch.bfloat16 if self.hardware.bf16 else torch.float32
        found = torch.cpu.get_capabilities()
        supported = any(found.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16")) and is_bf16_available()
        return torch.bfloat16 if supported else torch.float32

    @property
    def checkpointing(self) -> bool:
        """Whether activations are recomputed in the backward pass."""
        setting, config = self.config.gradient_checkpointing, self.config
        return setting == "on" or (setting == "auto" and config.model != "scratch" and self.hardware.on_gpu)

    @property
    def algorithm(self) -> Any:
        """The algorithm of reinforcement learning; None for other runs."""
        return self.config.algorithm if isinstance(self.config, RLConfig) else None

    @property
    def critic(self) -> str:
        """Where the critic is: head or separate; empty: there is none."""
        if not isinstance(self.config, RLConfig) or not self.config.algorithm.needs_critic:
            return ""
        return self.config.critic.where

    @property
    def critic_weights(self) -> int:
        """Number of weights of the critic."""
        trunk = self.shape.weights - self.shape.head if self.critic == "separate" else 0
        return trunk + (self.shape.config.hidden_size + 1 if self.critic else 0)

    @cached_property
    def adapter(self) -> int:
        """Number of weights of the LoRA adapter."""
        return adapter_weights(self.shape.config, self.config.lora) if self.config.lora.rank else 0

    @property
    def trained(self) -> int:
        """Number of weights that train, which have a gradient and two moments of AdamW."""
        return (self.adapter or self.shape.weights) + self.critic_weights

    @property
    def weight_bytes(self) -> float:
        """Bytes of policy and critic: what trains is float32, a base under an adapter `frozen_dtype`, or quantized
        except for embeddings, norms and head.
        """
        if not self.adapter:
            return 4.0 * self.trained
        quantized = self.shape.linear if self.quantized else 0
        size = self.frozen_dtype.itemsize
        return size * self.shape.weights - (size - BYTES_PER_WEIGHT) * quantized + 4.0 * self.trained

    @property
    def quantized(self) -> bool:
        """Whether the frozen weights are in 4 bits."""
        return self.config.lora.quantize != "off"

    @property
    def rounds(self) -> bool:
        """Whether a pretrained model is rounded, and nothing trains before reinforcement learning."""
        config = self.config
        warm = isinstance(config, RLConfig) and config.warm_start.episodes > 0
        return self.quantized and config.model != "scratch" and not warm

    @property
    def half_bytes(self) -> float:
        """Bytes of the whole model in the run's precision."""
        return float(self.dtype.itemsize * self.shape.weights)

    @property
    def reference_bytes(self) -> float:
        """Bytes of the reference model; unless it is another model, with an adapter it is the policy without that.

        Raises:
            UsageError: The reference model is unknown.
        """
        if self.reference:
            return float(self.frozen_dtype.itemsize * self.reference.shape.weights)
        if self.adapter:
            return 0.0
        if isinstance(self.config, DPOConfig):  # a copy of the policy
            return 4.0 * self.shape.weights
        needed = self.algorithm is not None and self.algorithm.needs_reference
        return float(self.dtype.itemsize * self.shape.weights) if needed else 0.0

    @cached_property
    def reference(self) -> Workload | None:
        """The same run with another model, the reference of DPO, as its model; None without `reference.model`."""
        if not isinstance(self.config, DPOConfig) or not self.config.reference.model:
            return None
        config = replace(self.config, model=self.config.reference.model, lora=Lora(), reference=Reference())
        return Workload(config, self.hardware)

    @property
    def frozen_dtype(self) -> torch.dtype:
        """The data type in which the policy's frozen weights, and another reference model, are loaded
        (`trainers.model_setup.policy_dtype`): float32 if all weights train or the run's precision isn't bf16.
        """
        return torch.bfloat16 if self.adapter and self.dtype == torch.bfloat16 else torch.float32

    @cached_property
    def teacher(self) -> Workload | None:
        """The same run with the teacher of on-policy distillation as its model; None without a teacher."""
        if not isinstance(self.config, RLConfig) or not self.config.distillation.teacher:
            return None
        config = replace(self.config, model=self.config.distillation.teacher, lora=Lora(), distillation=Distillation())
        return Workload(config, self.hardware)

    @property
    def teacher_bytes(self) -> float:
        """Bytes of the teacher of on-policy distillation.

        Raises:
            UsageError: The teacher's model is unknown.
        """
        return self.teacher.half_bytes if self.teacher else 0.0

    @property
    def offloads(self) -> bool:
        """Whether the moments are in host memory except during updates."""
        on_gpu = self.hardware.on_gpu and not self.hardware.sharded
        return on_gpu and self.config.optimizer.offload and isinstance(self.config, RLConfig)

    @property
    def copied_bytes(self) -> float:
        """Bytes of the copy of the learner's state from which checkpoints are written in the background: of each
        process if the state is sharded, otherwise of the main process. 0: they aren't.
        """
        config = self.config
        if not isinstance(config, RLConfig) or config.save_async == "off":
            return 0.0
        if config.save_async == "auto" and not self.hardware.on_gpu and self.hardware.processes == 1:
            return 0.0
        weights = self.weight_bytes if self.hardware.sharded else 4.0 * self.trained
        return (weights + 8.0 * self.trained) / self.shards

    @property
    def shards(self) -> int:
        """Number of processes over which weights, gradients and moments are sharded."""
        return self.hardware.processes if self.hardware.sharded else 1

    @property
    def longest(self) -> int:
        """Number of tokens of the longest context."""
        longest = self.config.generation.max_context
        return min(longest, self.shape.context or longest)

    @property
    def pack(self) -> int:
        """Number of tokens of the largest micro-batch: a longer context, or pair of contexts, gets one of its own."""
        micro = self.config.optimizer.micro_tokens
        if isinstance(self.config, RLConfig):
            return max(micro, self.longest)
        row = 2 * self.longest if isinstance(self.config, DPOConfig) else self.longest
        share = max(1, getattr(self.config, "batch", 1) // self.hardware.processes)
        return row * max(1, min(share, micro // row))

    def update_activations(self) -> Activations:
        """Measure the pass of the update that needs the most memory."""
        return self._largest(self._pass(self.config.lora, self.critic))

    def imitation_activations(self) -> Activations:
        """Measure the same for the warm start, which trains all weights of the policy, without a critic."""
        return self._largest(self._pass(Lora(), ""))

    def scoring_activations(self) -> Activations:
        """Measure the forward pass for log-probabilities, of the policy or of the reference."""
        return self._largest(replace(self._pass(self.config.lora, self.critic), train=False, checkpointing=False))

    def frozen_activations(self) -> Activations:
        """Measure the forward pass of a frozen model in the run's precision, such as a teacher."""
        run = replace(self._pass(Lora(), ""), train=False, checkpointing=False, autocast=False)
        return self._largest(run)

    def _pass(self, lora: Lora, critic: str) -> Pass:
        half = self.dtype != torch.float32
        return Pass(
            (self.pack,),
            gpu=self.hardware.on_gpu,
            precision=self.dtype,
            autocast=half and not self.hardware.sharded,
            checkpointing=self.checkpointing,
            lora=lora,
            critic=critic,
            bf16=self.hardware.bf16,
        )

    def _largest(self, run: Pass) -> Activations:
        """Measure a pass over the segments that need the most memory: without a fused kernel, it depends on lengths."""
        longest, config = min(self.longest, self.pack), self.shape.config
        candidates: set[tuple[int, ...]] = {(self.pack,) if run.fused else _filled(self.pack, longest)}
        if not self.hardware.on_gpu and run.precision != torch.float32 and longest > _BLOCKS:
            micro = max(self.config.optimizer.micro_tokens, _BLOCKS)
            candidates.add((_BLOCKS,) * (micro // _BLOCKS))
        measured = [measure(config, replace(run, lengths=lengths)) for lengths in sorted(candidates)]
        return max(measured, key=lambda activations: activations.peak)

    def cache_bytes(self, contexts: int) -> float:
        """Bytes of the keys and values of this many contexts of maximum length."""
        return float(contexts * self.longest * self.shape.cache * self.dtype.itemsize)

    @property
    def episodes(self) -> int:
        """The most episodes that a process plays with the same weights."""
        config = self.config
        slots = config.slots * len(config.worlds)
        tasks = config.evaluation.tasks or slots
        played = max(tasks, config.evaluation.test_tasks or slots) * config.evaluation.samples * len(config.worlds)
        if isinstance(config, RLConfig):
            played = max(played, config.tasks_per_step * config.group_size)
        return -(-played // self.hardware.processes)

    @property
    def concurrent(self) -> int:
        """The most episodes that a process plays at the same time."""
        return min(self.config.slots * len(self.config.worlds), self.episodes)


def _filled(tokens: int, longest: int) -> tuple[int, ...]:
    """Return lengths of segments that sum up to `tokens`, the longest first."""
    full, rest = divmod(tokens, longest)
    return (longest,) * full + ((rest,) if rest else ())
