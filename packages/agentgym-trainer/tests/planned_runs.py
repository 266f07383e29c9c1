"""Runs on GPUs whose memory is planned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agentgym_trainer.config import DPOConfig, EngineSettings, Lora, RLConfig
from agentgym_trainer.recipes import RECIPES

VLLM = EngineSettings(kind="vllm", memory=0.4)
QLORA = Lora(rank=32, quantize="nf4")


def run(model: str = "Qwen/Qwen2.5-7B-Instruct", **changes: Any) -> RLConfig:
    """Return the recipe `textcraft-scaling` with another model and other settings."""
    config = RECIPES["textcraft-scaling"].config
    assert isinstance(config, RLConfig)
    return replace(config, model=model, **({"engine": VLLM} | changes))


def dpo(**changes: Any) -> DPOConfig:
    """Return the recipe `dpo-textcraft` on GPUs, with other settings."""
    config = RECIPES["dpo-textcraft"].config
    assert isinstance(config, DPOConfig)
    settings = {"model": "Qwen/Qwen2.5-7B-Instruct", "device": "auto", "precision": "bf16", "engine": VLLM}
    return replace(config, **(settings | changes))
