"""What a sharded run can't do: it is refused in a plan and before anything is loaded, and left out of proposals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from agentgym_eval.util.errors import UsageError

from agentgym_trainer.config import BaseConfig, OfflineConfig, RLConfig


def check_sharding(config: BaseConfig, *, sharded: bool) -> None:
    """Check that the settings of a run work with the sharding of its weights.

    Args:
        config: The configuration of the run.
        sharded: Whether FSDP2 shards the weights.

    Raises:
        UsageError: One doesn't; the message says what to do.
    """
    if sharded and (refusal := next(_refusals(config), None)):
        why, instead = refusal
        raise UsageError(
            f"{why} Start the processes without FSDP2 (accelerate launch --multi_gpu; in --plan 8xH100:ddp), {instead}."
        )


def _refusals(config: BaseConfig) -> Iterator[tuple[str, str]]:
    """Yield why a run doesn't work with sharded weights, and what else to do about it."""
    if isinstance(config, OfflineConfig):
        yield (
            "Only reinforcement learning can shard its weights; SFT, DPO and AgentEvol have the whole model on every "
            "GPU.",
            "and train an adapter, --lora.rank, if the model is too large for that",
        )
    if config.lora.quantize != "off":
        quantize = f"lora.quantize {config.lora.quantize}"
        yield f"{quantize} keeps the whole model on every GPU, and FSDP2 shards it.", "or leave lora.quantize off"
    if config.optimizer.offload:
        yield (
            "optimizer.offload moves moments of whole weights, and FSDP2 shards both.",
            "or leave optimizer.offload off",
        )
    if isinstance(config, RLConfig) and config.compile:
        yield "compile is for layers with whole weights, and FSDP2 shards them.", "or leave compile off"


def shardable(config: BaseConfig) -> BaseConfig:
    """Return the run without what can't be sharded."""
    lora, optimizer = replace(config.lora, quantize="off"), replace(config.optimizer, offload=False)
    config = replace(config, lora=lora, optimizer=optimizer)
    return replace(config, compile=False) if isinstance(config, RLConfig) else config
