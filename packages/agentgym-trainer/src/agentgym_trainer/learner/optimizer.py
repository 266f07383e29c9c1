"""The optimizer's parameter groups and learning-rate schedule, and its precision."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

from agentgym_trainer.config import Optimizer
from agentgym_trainer.models.policy import PolicyModel


def compute_dtype(accelerator: Accelerator) -> torch.dtype:
    """Return the data type in which models compute."""
    return {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[accelerator.mixed_precision]


def check_precision(accelerator: Accelerator) -> None:
    """Refuse a precision that accelerate would silently ignore."""
    if accelerator.mixed_precision == "fp16" and accelerator.scaler is None:
        raise ValueError("accelerate ignores fp16 on this device; choose the precision bf16 or no.")


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
