"""Configurations of training runs, as frozen dataclasses.

Importing this package doesn't import torch, so that `train --help` is fast.
"""

from agentgym_trainer.config.agent_evol import AgentEvolConfig, Exploration
from agentgym_trainer.config.base import (
    BaseConfig,
    EngineSettings,
    Evaluation,
    Generation,
    Lora,
    Optimizer,
    WorldConfig,
    at_least_one,
)
from agentgym_trainer.config.data import DataConfig, OfflineConfig, SFTConfig
from agentgym_trainer.config.distillation import Distillation
from agentgym_trainer.config.dpo import DPOConfig, Reference
from agentgym_trainer.config.rl import AsyncRollout, CriticModel, DAgger, RLConfig, RolloutFiles, SFTTerm, WarmStart
from agentgym_trainer.config.warnings import Warnings

__all__ = [
    "AgentEvolConfig",
    "AsyncRollout",
    "BaseConfig",
    "CriticModel",
    "DAgger",
    "DPOConfig",
    "DataConfig",
    "Distillation",
    "EngineSettings",
    "Evaluation",
    "Exploration",
    "Generation",
    "Lora",
    "OfflineConfig",
    "Optimizer",
    "RLConfig",
    "Reference",
    "RolloutFiles",
    "SFTConfig",
    "SFTTerm",
    "WarmStart",
    "Warnings",
    "WorldConfig",
    "at_least_one",
]
