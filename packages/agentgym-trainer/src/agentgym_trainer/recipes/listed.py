"""All recipes of this package."""

from __future__ import annotations

from agentgym_trainer.recipes.agent_evol import EVOL_RECIPES
from agentgym_trainer.recipes.dpo import DPO_RECIPES
from agentgym_trainer.recipes.recipe import Recipe
from agentgym_trainer.recipes.rl import RL_RECIPES
from agentgym_trainer.recipes.sft import SFT_RECIPES
from agentgym_trainer.recipes.smollm2 import SMOLLM2_RECIPES

DEFAULT = "quickstart"
RECIPES: dict[str, Recipe] = {**RL_RECIPES, **SMOLLM2_RECIPES, **SFT_RECIPES, **DPO_RECIPES, **EVOL_RECIPES}
