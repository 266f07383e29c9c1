"""Recipes: whole configurations by name, as typed Python values, of all kinds of training runs."""

from agentgym_trainer.recipes.dpo import DPO_RECIPES
from agentgym_trainer.recipes.evol import EVOL_RECIPES
from agentgym_trainer.recipes.miniature import tiny
from agentgym_trainer.recipes.recipe import Recipe
from agentgym_trainer.recipes.rl import RL_RECIPES
from agentgym_trainer.recipes.sft import SFT_RECIPES

DEFAULT = "quickstart"
RECIPES: dict[str, Recipe] = {**RL_RECIPES, **SFT_RECIPES, **DPO_RECIPES, **EVOL_RECIPES}

__all__ = ["DEFAULT", "RECIPES", "Recipe", "tiny"]
