"""Recipes for AgentEvol.

`evol-worlds` has the settings of AgentGym's scripts (arXiv 2406.04151): four iterations, one pass over the data with 8
GPUs x 2 x 2 episodes per update, learning rate 1e-5, gradients clipped at 1, contexts of 4,096 tokens. Model and
horizon are those of AgentGym-RL (arXiv 2509.08755); the number of expert episodes is this package's.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from agentgym_trainer.config import (
    AgentEvolConfig,
    DataConfig,
    Exploration,
    Generation,
    Optimizer,
    SFTConfig,
    WorldConfig,
)
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.recipes.recipe import Recipe
from agentgym_trainer.recipes.sft import SFT_RECIPES

_SFT = SFT_RECIPES["sft-textcraft"].config
_SFT_SETTINGS: dict[str, Any] = {f.name: getattr(_SFT, f.name) for f in fields(SFTConfig)}
_TEXTCRAFT = replace(
    AgentEvolConfig(**_SFT_SETTINGS),
    model="runs/sft-textcraft/model",
    data=DataConfig(episodes=60, tasks=60),
    optimizer=replace(_SFT.optimizer, lr=1e-3, warmup=5),
    evaluation=replace(_SFT.evaluation, every=0),
    epochs=3,
    iterations=3,
    exploration=Exploration(samples=4),
)
_WORLDS = AgentEvolConfig(
    world=WorldConfig("agentgym/TextCraft-v0"),
    extra_worlds=(WorldConfig("agentgym/BabyAI-v0"), WorldConfig("agentgym/SciWorld-v0")),
    horizon=FixedHorizon(30),
    generation=Generation(max_tokens=512, max_context=4_096),
    optimizer=Optimizer(lr=1e-5, betas=(0.9, 0.999)),
    data=DataConfig(episodes=3_000),
    batch=32,
    slots=64,
    precision="bf16",
    exploration=Exploration(temperature=0.0, thresholds=("agentgym/BabyAI-v0=0", "agentgym/SciWorld-v0=0.99")),
)

EVOL_RECIPES = {
    "evol-textcraft": Recipe(
        "the model of sft-textcraft explores and trains on its successful episodes, on a CPU", _TEXTCRAFT
    ),
    "evol-worlds": Recipe("AgentEvol over TextCraft, BabyAI and SciWorld", _WORLDS),
}
