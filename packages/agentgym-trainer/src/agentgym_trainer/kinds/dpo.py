"""Direct preference optimization."""

from __future__ import annotations

from dataclasses import replace

from agentgym_trainer.config import DPOConfig
from agentgym_trainer.kinds.base import BATCH, RunKind


def _miniature(config: DPOConfig) -> DPOConfig:
    # An untrained model never succeeds; a very noisy expert sometimes does.
    data = replace(config.data, episodes=4 * BATCH, noise=0.8)
    return replace(config, data=data, player="expert", samples=2 * BATCH, batch=BATCH, epochs=1)


DPO = RunKind("dpo", DPOConfig, "agentgym_trainer.trainers.dpo:train", _miniature)
