"""Recipes by name: those of this package, of installed ones, and of modules of one's own."""

from __future__ import annotations

from agentgym_eval.util.errors import UsageError

from agentgym_trainer.config import KINDS, BaseConfig
from agentgym_trainer.plugins import find_named
from agentgym_trainer.recipes.listed import RECIPES
from agentgym_trainer.recipes.recipe import Recipe

GROUP = "agentgym.recipes"
"""Entry points `NAME = package:RECIPE`, of a `Recipe` or a configuration."""


def find_recipe(name: str) -> Recipe:
    """The recipe called `name`: one of `RECIPES`, one that an installed package has registered, or MODULE:NAME.

    Raises:
        UsageError: when there is none, or it is neither a `Recipe` nor a configuration.
    """
    if name in RECIPES:
        return RECIPES[name]
    found = find_named(name, "recipe", RECIPES, GROUP)
    recipe = Recipe(name, found) if isinstance(found, BaseConfig) else found
    if not isinstance(recipe, Recipe) or type(recipe.config) not in KINDS.values():
        kinds = ", ".join(kind.__name__ for kind in KINDS.values())
        raise UsageError(f"{name} is no recipe: it has to be a Recipe or a configuration, which is one of {kinds}.")
    return recipe
