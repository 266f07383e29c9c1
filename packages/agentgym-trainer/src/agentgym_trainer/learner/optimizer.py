"""The optimizer's parameter groups and learning-rate schedule, and its precision."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

from agentgym_trainer.config import Optimizer
from agentgym_trainer.models.memory import pin_in_place
from agentgym_trainer.models.policy import PolicyModel

_PINNED_FROM = 2**20
"""Bytes of the smallest moments that are copied from and to pinned memory: for smaller ones it makes no difference."""


def compute_dtype(accelerator: Accelerator) -> torch.dtype:
    """Return the data type in which models compute."""
    return {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[accelerator.mixed_precision]


def check_precision(accelerator: Accelerator) -> None:
    """Refuse a precision that accelerate would silently ignore."""
    if accelerator.mixed_precision == "fp16" and accelerator.scaler is None:
        raise ValueError("accelerate ignores fp16 on this device; choose the precision bf16 or no.")


class OffloadedMoments:
    """AdamW's moments in host memory, except while they are needed on the device."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Manage the moments of `optimizer`, which has taken any number of steps.

        Raises:
            ValueError: The weights are sharded.
        """
        if any(isinstance(weight, DTensor) for group in optimizer.param_groups for weight in group["params"]):
            raise ValueError("optimizer.offload is for weights that aren't sharded; FSDP2 shards the moments, too.")
        self._optimizer = optimizer
        self._host: dict[tuple[Tensor, str], Tensor] = {}
        """Memory of each moment, which is reused; that of large ones is pinned."""
        self._loading: dict[int, dict[str, Any]] = {}
        # When a run resumes, the device may have no room for them either: an engine has started before.
        optimizer.register_load_state_dict_pre_hook(self._hold_back)
        optimizer.register_load_state_dict_post_hook(self._put_back)

    @contextmanager
    def on_device(self) -> Generator[None]:
        """Have the moments on their weights' devices in the context."""
        for weight, state in self._optimizer.state.items():
            for name in self._moments(state):
                state[name] = state[name].to(weight.device, non_blocking=True)
        try:
            yield
        finally:
            for weight, state in self._optimizer.state.items():
                for name in self._moments(state):
                    moment, place = state[name], (weight, name)
                    if place not in self._host:
                        self._host[place] = torch.empty_like(moment, device="cpu")
                        if moment.is_cuda and moment.nbytes >= _PINNED_FROM:
                            pin_in_place(self._host[place])
                    state[name] = self._host[place].copy_(moment)

    def _hold_back(self, _: torch.optim.Optimizer, stored: dict[str, Any]) -> dict[str, Any]:
        """Return a stored state without moments, which torch would move to the device; they are in host memory."""
        every: dict[int, dict[str, Any]] = stored["state"]
        self._loading = {n: {name: state[name] for name in self._moments(state)} for n, state in every.items()}
        left = {n: {name: state[name] for name in state.keys() - self._loading[n]} for n, state in every.items()}
        return {**stored, "state": left}

    def _put_back(self, optimizer: torch.optim.Optimizer) -> None:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        for number, moments in self._loading.items():
            optimizer.state[weights[number]] |= moments
        self._loading = {}

    @staticmethod
    def _moments(state: dict[str, Any]) -> list[str]:
        """Return the names of tensors of the weight's size; the number of steps stays where it is."""
        return [name for name, value in state.items() if isinstance(value, Tensor) and value.dim()]


def parameter_groups(actor: PolicyModel, lr: float, critic_lr: float | None) -> list[dict[str, Any]]:
    """Return the parameter groups: the policy's weights, then the critic's own."""
    groups = [{"params": [p for p in actor.policy.parameters() if p.requires_grad], "lr": lr}]
    if actor.critic is not None:
        groups.append({"params": list(actor.critic.parameters()), "lr": lr if critic_lr is None else critic_lr})
    return groups


def make_schedule(optimizer: torch.optim.Optimizer, settings: Optimizer, total_steps: int) -> LambdaLR:
    """Return a schedule of transformers without its first and last step, where warmup and decay have a learning rate of
    0 and an update would have no effect.
    """
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    if settings.schedule == "constant":
        return get_constant_schedule_with_warmup(optimizer, settings.warmup, last_epoch=0)
    decay = {"linear": get_linear_schedule_with_warmup, "cosine": get_cosine_schedule_with_warmup}[settings.schedule]
    return decay(optimizer, settings.warmup, total_steps + 1, last_epoch=0)
