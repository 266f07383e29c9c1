"""Recipes: complete, named configurations of training runs of all kinds, as typed Python values."""

from agentgym_trainer.kinds import tiny
from agentgym_trainer.recipes.find import GROUP, check_first_run, find_recipe
from agentgym_trainer.recipes.listed import DEFAULT, RECIPES
from agentgym_trainer.recipes.recipe import Recipe

__all__ = ["DEFAULT", "GROUP", "RECIPES", "Recipe", "check_first_run", "find_recipe", "tiny"]
