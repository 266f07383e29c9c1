"""The models of a run: loaded to train, created from scratch, and saved, at its start and its end."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from agentgym_envs import Episode, Policy, text_env
from agentgym_eval.policies.policies import Oracle, Scripted
from torch import Tensor

from agentgym_trainer.config import BaseConfig, OfflineConfig
from agentgym_trainer.learner.optimizer import compute_dtype
from agentgym_trainer.models.load import (
    is_adapter,
    load_architecture,
    load_model,
    load_quantized,
    scratch_model,
)
from agentgym_trainer.rollout.environments import OpenEnvironment
from agentgym_trainer.run.disk import writing
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.trainers.setup import (
    is_sharded,
    play_tasks,
    resolve_gradient_checkpointing,
    resolve_precision,
)


def load_policy(
    config: BaseConfig, name: str, accelerator: Accelerator, *, dtype: torch.dtype | None = None
) -> tuple[Any, Chat]:
    """Load a model to train, or a reference, by name or path. All processes must call this.

    An adapter is merged, unless the weights are quantized, which are those of a whole model.

    If it will be sharded, no process ever holds the whole model on its device: the main process loads it into CPU
    memory, the others only build it on the meta device (see `PolicyModel.allocate`).

    Args:
        config: The configuration of the run.
        name: Name or path of the model.
        accelerator: Determines the device, and whether the model will be sharded.
        dtype: The data type of the weights; None: see `policy_dtype`, and quantized if `lora.quantize` says so.

    Raises:
        UsageError: when it can't be loaded.
    """
    quantized, sharded = dtype is None and config.lora.quantize != "off", is_sharded(accelerator)
    dtype = dtype or policy_dtype(config)
    if quantized:
        compute = compute_dtype(accelerator)
        model, chat = load_quantized(name, dtype=dtype, compute=compute, device=accelerator.device)
    elif sharded and not accelerator.is_main_process and not is_adapter(name):
        model, chat = load_architecture(name, dtype=dtype)
    else:
        model, chat = load_model(name, dtype=dtype, device=torch.device("cpu") if sharded else accelerator.device)
    if resolve_gradient_checkpointing(config):
        model.gradient_checkpointing_enable()
    return model, chat


def policy_dtype(config: BaseConfig) -> torch.dtype:
    """Return the dtype to load the policy's weights in: bfloat16 for frozen ones under an adapter, else float32."""
    return torch.bfloat16 if config.lora.rank and resolve_precision(config) == "bf16" else torch.float32


def makes_start(config: BaseConfig) -> bool:
    """Return whether a run makes its initial model itself: from scratch, or merged from an adapter and its model."""
    return config.model == "scratch" or is_adapter(config.model)


def make_start(
    config: OfflineConfig, folder: RunFolder, worlds: Sequence[OpenEnvironment], episodes: Sequence[Episode]
) -> None:
    """Make the initial model of a run (see `makes_start`), and save it in the run's folder. Only one process may call
    this.

    Args:
        config: The configuration of the run.
        folder: The folder of the run.
        worlds: The environments of the run.
        episodes: The episodes whose texts train the tokenizer of a model from scratch.
    """
    if config.model == "scratch":
        model, chat = model_from_scratch(config, worlds, Oracle(config.data.noise), episodes)
    else:
        model, chat = load_model(config.model, dtype=torch.float32, device=torch.device("cpu"))
    save_start(folder, model, chat)


def save_start(folder: RunFolder, model: Any, chat: Chat) -> None:
    """Save the initial model in the run's folder; see `save_model`."""
    save_model(model, chat, folder.start)


def export_model(checkpoint: Path, folder: Path) -> None:
    """Export the model of a checkpoint as a whole model, with adapters merged and an end-of-turn token that ends
    replies in other programs.

    Raises:
        OSError: when it can't be written, for example because the disk is full. No partial files are left.
    """
    # Adapters are merged in float32; whole models are exported as they were saved.
    dtype = torch.float32 if is_adapter(str(checkpoint)) else "auto"
    model, chat = load_model(str(checkpoint), dtype=dtype, device=torch.device("cpu"))
    _end_with_turn(model.generation_config, chat.end_id)
    save_model(model, chat, folder)


def _end_with_turn(generation: Any, end_id: int) -> None:
    """Make other programs end a reply at its end-of-turn token, as the model was trained to. In the configuration of a
    base model, only the end of a text ends one.
    """
    own = generation.eos_token_id
    ends: list[int] = [] if own is None else [own] if isinstance(own, int) else own
    if end_id not in ends:
        generation.eos_token_id = [*ends, end_id] if ends else end_id


def save_model(model: Any, chat: Chat, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Save a model and its tokenizer atomically, replacing an existing folder. Only one process may call this.

    Args:
        model: The model to save.
        chat: Its chat.
        folder: Where to save it.
        weights: Weights to save instead of the model's own, which may be sharded.

    Raises:
        OSError: when it can't be written, for example because the disk is full. No partial files are left.
    """
    unfinished = folder.with_name(f".{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        with writing(folder):
            folder.parent.mkdir(exist_ok=True)
            model.save_pretrained(unfinished, state_dict=weights)
            chat.tokenizer.save_pretrained(unfinished)
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)  # it only exists after an error


def model_from_scratch(
    config: BaseConfig, worlds: Sequence[OpenEnvironment], expert: Policy, seen: Sequence[Episode]
) -> tuple[Any, Chat]:
    """Create a model from scratch, whose tokenizer is trained on `seen` and on episodes of a novice and the expert, in
    environments that have one.
    """
    taught = [world for world in worlds if text_env(world.wrapped).has_oracle]
    texts = [
        episode
        for policy, played in ((expert, taught), (Scripted(("?",)), worlds))
        if played
        for episode in play_tasks(policy, config, played, config.scratch.episodes)
    ]
    return scratch_model(config.scratch, [*seen, *texts], seed=config.seed)
