"""AgentEvol."""

from __future__ import annotations

from dataclasses import replace

from agentgym_trainer.config import AgentEvolConfig, Exploration
from agentgym_trainer.kinds.base import BATCH, RunKind, few


def _miniature(config: AgentEvolConfig) -> AgentEvolConfig:
    # So small a model never succeeds and seldom completes a reply: train on all episodes, truncated ones included.
    exploration = Exploration(tasks=2, samples=2, keep="all")
    return replace(config, data=few(config.data), batch=BATCH, epochs=1, iterations=1, exploration=exploration)


def _columns(last: int) -> dict[int, str]:
    return {0: "before", 1: "cloned"} | {step: f"iteration {step - 1}" for step in range(2, last + 1)}


AGENT_EVOL = RunKind(
    "evol",
    AgentEvolConfig,
    "agentgym_trainer.trainers.agent_evol:train",
    _miniature,
    step_noun="models",
    x_label="models trained",
    plots_loss=False,
    columns=_columns,
)
