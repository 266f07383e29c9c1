"""Find recipes by name: those of this package, of installed packages, and of user modules."""

from __future__ import annotations

from pathlib import Path

from agentgym_envs.util.installation import command
from agentgym_eval.util.errors import UsageError

from agentgym_trainer.config import BaseConfig
from agentgym_trainer.kinds import KINDS
from agentgym_trainer.plugins import find_named
from agentgym_trainer.recipes.listed import RECIPES
from agentgym_trainer.recipes.recipe import Recipe

GROUP = "agentgym.recipes"
"""Group of entry points `NAME = package:RECIPE`, where RECIPE is a `Recipe` or a configuration."""


def find_recipe(name: str) -> Recipe:
    """Return the recipe called `name`: one of `RECIPES`, one registered by an installed package, or MODULE:NAME.

    Raises:
        UsageError: There is no such recipe, or it is neither a `Recipe` nor a configuration.
    """
    if name in RECIPES:
        return RECIPES[name]
    found = find_named(name, "recipe", RECIPES, GROUP)
    recipe = Recipe(name, found) if isinstance(found, BaseConfig) else found
    if not isinstance(recipe, Recipe) or type(recipe.config) not in [kind.config for kind in KINDS.values()]:
        kinds = ", ".join(kind.config.__name__ for kind in KINDS.values())
        raise UsageError(f"{name} is no recipe: it must be a Recipe or a configuration, which is one of {kinds}.")
    return recipe


def check_first_run(config: BaseConfig) -> None:
    """Check that the model exists with which a recipe begins, if another recipe's run makes it.

    Raises:
        UsageError: It doesn't; the message has the command that makes it.
    """
    folder = Path(config.model).parent
    makes_it = config.model == f"runs/{folder.name}/model" and folder.name in RECIPES
    if makes_it and not Path(config.model).exists():
        raise UsageError(
            f"The run begins with the model {config.model}, which isn't there yet. First: "
            f"{command('train')} {folder.name} --out {folder}"
        )
