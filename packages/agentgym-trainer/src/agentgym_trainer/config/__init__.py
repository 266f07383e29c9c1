"""Everything a training run is told, as frozen dataclasses.

Importing this imports no torch, so `train --help` answers at once.
"""

from agentgym_trainer.config.agent_evol import AgentEvol, Exploration
from agentgym_trainer.config.base import (
    EngineSettings,
    Evaluation,
    Generation,
    Lora,
    Optimizer,
    Setup,
    World,
    at_least_one,
)
from agentgym_trainer.config.data import SFT, Data, FromData
from agentgym_trainer.config.dpo import DPO, Reference
from agentgym_trainer.config.rl import Config, CriticModel, Overlap, RolloutFiles, SFTTerm, WarmStart
from agentgym_trainer.config.warnings import Warnings

KINDS: dict[str, type[Setup]] = {"rl": Config, "sft": SFT, "dpo": DPO, "evol": AgentEvol}
"""The kinds of training runs, by the name that `run.json` notes."""

__all__ = [
    "DPO",
    "KINDS",
    "SFT",
    "AgentEvol",
    "Config",
    "CriticModel",
    "Data",
    "EngineSettings",
    "Evaluation",
    "Exploration",
    "FromData",
    "Generation",
    "Lora",
    "Optimizer",
    "Overlap",
    "Reference",
    "RolloutFiles",
    "SFTTerm",
    "Setup",
    "WarmStart",
    "Warnings",
    "World",
    "at_least_one",
]
