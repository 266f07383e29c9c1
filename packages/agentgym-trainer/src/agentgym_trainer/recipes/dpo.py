"""Recipes for direct preference optimization.

Each starts from the model of an SFT recipe, with the same environment, horizon and token budgets. Those for real models
use as many tasks and episodes per task as AgentGym-RL (arXiv 2509.08755). AgentGym-RL has no DPO: beta and learning
rate are TRL's defaults, and one pass over up to four pairs per task is this package's choice.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from agentgym_trainer.config import BaseConfig, DataConfig, DPOConfig, Optimizer
from agentgym_trainer.recipes.recipe import Recipe
from agentgym_trainer.recipes.sft import SFT_RECIPES


def _after(recipe: str, **settings: Any) -> DPOConfig:
    """Return a DPO run that starts from the model of an SFT recipe, in the run folder of that recipe's name."""
    sft = SFT_RECIPES[recipe].config
    inherited: dict[str, Any] = {f.name: getattr(sft, f.name) for f in fields(BaseConfig)}
    inherited |= {"model": f"runs/{recipe}/model", **settings}
    return DPOConfig(**inherited)


def _preferring(world: str, *, tasks: int, samples: int) -> Recipe:
    """Return a recipe that pairs a real model's own episodes."""
    recipe = f"{world.lower()}-sft"
    config = _after(
        recipe,
        optimizer=Optimizer(lr=1e-6, betas=(0.9, 0.999)),
        data=DataConfig(episodes=tasks * samples, keep="all"),
        samples=samples,
        batch=32,
    )
    return Recipe(f"DPO on better and worse episodes of the model of {recipe} in {tasks} tasks", config)


_SCRATCH = _after(
    "sft-textcraft",
    # With six times the learning rate and no imitation loss, the chosen side becomes less likely and success collapses.
    optimizer=replace(SFT_RECIPES["sft-textcraft"].config.optimizer, lr=5e-5, schedule="constant", warmup=0),
    data=DataConfig(episodes=2392, keep="all"),
    epochs=2,
    imitation=0.5,
)

DPO_RECIPES = {
    "dpo-textcraft": Recipe(
        "DPO on better and worse episodes of the model of sft-textcraft, on a CPU in minutes", _SCRATCH
    ),
    "textcraft-dpo": _preferring("TextCraft", tasks=374, samples=8),
    "babyai-dpo": _preferring("BabyAI", tasks=810, samples=4),
    "sciworld-dpo": _preferring("SciWorld", tasks=2_120, samples=8),
    "searchqa-dpo": _preferring("SearchQA", tasks=1_000, samples=4),
    "webarena-dpo": _preferring("WebArena", tasks=372, samples=4),
}
