"""Multi-turn reinforcement learning of language agents, from a world to a learning curve.

`from agentgym_trainer import RLConfig, train, resume, load_run` is the Python interface (docs/python.md). Importing
this package loads neither torch nor transformers; nor do the configurations and recipes, only `train` and so on.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentgym_trainer.api import Run, load_run, resume, train
    from agentgym_trainer.config import (
        AgentEvolConfig,
        AsyncRollout,
        BaseConfig,
        CriticModel,
        DAgger,
        DataConfig,
        Distillation,
        DPOConfig,
        EngineSettings,
        Evaluation,
        Exploration,
        Generation,
        Lora,
        OfflineConfig,
        Optimizer,
        Reference,
        RLConfig,
        RolloutFiles,
        SFTConfig,
        SFTTerm,
        WarmStart,
        Warnings,
        WorldConfig,
    )
    from agentgym_trainer.recipes import RECIPES, Recipe, find_recipe, tiny

_MODULES = {
    "agentgym_trainer.api": "Run load_run resume train",
    "agentgym_trainer.config": "AgentEvolConfig AsyncRollout BaseConfig CriticModel DAgger DPOConfig DataConfig "
    "Distillation EngineSettings Evaluation Exploration Generation Lora OfflineConfig Optimizer RLConfig Reference "
    "RolloutFiles SFTConfig SFTTerm WarmStart Warnings WorldConfig",
    "agentgym_trainer.recipes": "RECIPES Recipe find_recipe tiny",
}
"""The modules of the names below, which are imported on first use, so that a command's `--help` is fast."""
_LAZY = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "RECIPES",
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
    "Recipe",
    "Reference",
    "RolloutFiles",
    "Run",
    "SFTConfig",
    "SFTTerm",
    "WarmStart",
    "Warnings",
    "WorldConfig",
    "find_recipe",
    "load_run",
    "resume",
    "tiny",
    "train",
]

# peft imports bitsandbytes if it is installed, which on some CPUs reports that it can't download a kernel, which isn't
# used (`models.quantization.keep_layout`).
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
