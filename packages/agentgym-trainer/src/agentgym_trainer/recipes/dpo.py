"""Recipes of direct preference optimization: each goes on with the model of a recipe of supervised fine-tuning, and
with that one's world, turns and token budgets.

Those for real models play as many tasks, and each as many times, as AgentGym-RL did (arXiv 2509.08755). It has no DPO:
beta and learning rate are TRL's own defaults, one pass over up to four pairs of each task is ours.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from agentgym_trainer.config import BaseConfig, DataConfig, DPOConfig, Optimizer
from agentgym_trainer.recipes.recipe import Recipe
from agentgym_trainer.recipes.sft import SFT_RECIPES


def _after(recipe: str, **settings: Any) -> DPOConfig:
    """The run that goes on where another recipe's, in a folder of its name, has left off."""
    before = SFT_RECIPES[recipe].config
    known: dict[str, Any] = {f.name: getattr(before, f.name) for f in fields(BaseConfig)}
    known |= {"model": f"runs/{recipe}/model", **settings}
    return DPOConfig(**known)


def _preferring(world: str, *, tasks: int, samples: int) -> Recipe:
    """Pairs of a real model's own episodes."""
    recipe = f"{world.lower()}-sft"
    config = _after(
        recipe,
        optimizer=Optimizer(lr=1e-6, betas=(0.9, 0.999)),
        data=DataConfig(episodes=tasks * samples, keep="all"),
        samples=samples,
        batch=32,
    )
    return Recipe(f"DPO on what the model of {recipe} does better and worse in {tasks} tasks", config)


_SCRATCH = _after(
    "sft-textcraft",
    # Six times as fast and without imitation, what is chosen becomes less likely too, and success collapses.
    optimizer=replace(SFT_RECIPES["sft-textcraft"].config.optimizer, lr=5e-5, schedule="constant", warmup=0),
    data=DataConfig(episodes=2392, keep="all"),
    epochs=2,
    imitation=0.5,
)

DPO_RECIPES = {
    "dpo-textcraft": Recipe(
        "the model of sft-textcraft learns from what it does better and what worse, on a CPU in minutes", _SCRATCH
    ),
    "textcraft-dpo": _preferring("TextCraft", tasks=374, samples=8),
    "babyai-dpo": _preferring("BabyAI", tasks=810, samples=4),
    "sciworld-dpo": _preferring("SciWorld", tasks=2_120, samples=8),
    "searchqa-dpo": _preferring("SearchQA", tasks=1_000, samples=4),
    "webarena-dpo": _preferring("WebArena", tasks=372, samples=4),
}
