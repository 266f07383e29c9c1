"""Supervised fine-tuning."""

from __future__ import annotations

from dataclasses import replace

from agentgym_trainer.config import SFTConfig
from agentgym_trainer.kinds.base import BATCH, RunKind, few


def _miniature(config: SFTConfig) -> SFTConfig:
    return replace(config, data=few(config.data), batch=BATCH, epochs=1)


SFT = RunKind("sft", SFTConfig, "agentgym_trainer.trainers.sft:train", _miniature)
