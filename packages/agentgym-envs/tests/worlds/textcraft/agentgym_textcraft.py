"""A reimplementation of the rules of the TextCraft in ADaPT and AgentGym, over our recipes.

There, an ingredient that is a tag accepts any item of the recipe group of that name (planks, wool). A tag without such
a group is an item of its own, gathered and used by the tag's name (oak logs). An ingredient with a few alternatives is
one of them as an item; the original's recipe files determine which, so any is accepted here. A command makes a recipe
once, whatever number precedes the item, and only its first line is read. Ingots and nuggets make each other; the
original server keeps the recipe that its file system lists first. Here, as observed, iron ingots are made of nuggets
and gold nuggets of ingots.
"""

from __future__ import annotations

import re

from agentgym_envs.worlds.textcraft.expert import plan
from agentgym_envs.worlds.textcraft.recipes import Ingredient, Recipe, load_table

GROUPS = ("planks", "wool")
MISSING_RECIPES = (("iron nugget", "iron ingot"), ("gold ingot", "gold nugget"), ("honey bottle", "honey block"))
"""Pairs of an item and an ingredient, for recipes that the original doesn't have."""


def tag(recipe: Recipe, ingredient: str) -> str | None:
    """Return the tag in the original recipe if it is an item of its own there."""
    match ingredient:
        case "charcoal or coal":
            return "coals" if recipe.item == "campfire" else None
        case "blackstone or cobblestone":
            return "stone crafting materials" if recipe.item in ("furnace", "brewing stand") else "stone tool materials"
        case "soul sand or soul soil":
            return "soul fire base blocks"
        case "wooden slabs":
            return ingredient
    return ingredient if ingredient.endswith(("logs", "stems")) else None


def names_of(recipe: Recipe, ingredient: Ingredient) -> tuple[str, ...]:
    """Return the names that an ingredient may have in a command that uses it."""
    if name := tag(recipe, ingredient.name):
        return (name,)
    return ("coal",) if ingredient.name == "charcoal or coal" else ingredient.members


def original_commands(goal: str) -> list[str]:
    """Return commands that reach `goal` in the original: our plan with tag names, making one recipe per command."""
    commands: list[str] = []
    gathered: dict[tuple[str, str], int] = {}
    steps = plan(goal, {})
    for step in steps:
        if step.recipe is None:
            continue
        times = step.amount // step.recipe.count
        using: list[str] = []
        for ingredient, amount in step.recipe.using:
            item = next(item for item, _ in step.using if item in ingredient.members)
            names = names_of(step.recipe, ingredient)
            name = item if item in names else names[0]
            using.append(f"{amount} {name}")
            if item in load_table().gathered:
                gathered[item, name] = gathered.get((item, name), 0) + amount * times
        commands += [f"craft {step.recipe.count} {step.item} using {', '.join(using)}"] * times
    return [f"get {amount} {name}" for (_, name), amount in gathered.items()] + commands


class Original:
    """One episode. `step` returns whether a command was carried out."""

    def __init__(self) -> None:
        self.inventory: dict[str, int] = {}
        self.recipes: dict[str, list[Recipe]] = {}
        for recipe in load_table().recipes:
            names = [ingredient.name for ingredient, _ in recipe.using]
            is_unpacking = len(names) == 1 and names[0].endswith(" block")
            if not is_unpacking and not any((recipe.item, name) in MISSING_RECIPES for name in names):
                self.recipes.setdefault(recipe.item, []).append(recipe)
        using = [(recipe, part) for recipes in self.recipes.values() for recipe in recipes for part, _ in recipe.using]
        self.names = {name for recipe, part in using for name in names_of(recipe, part)}

    def step(self, command: str) -> bool:
        command = command.split("\n")[0]
        if found := re.fullmatch(r"get (\d+) (.+)", command):
            return self._get(found[2], int(found[1]))
        if found := re.fullmatch(r"craft (?:\d+ )?(.+?) using (.+)", command):
            using = [re.fullmatch(r"(\d+) (.+)", part.strip()) for part in found[2].split(",")]
            return all(using) and self._craft(found[1], {part[2]: int(part[1]) for part in using if part})
        return command.startswith("inventory")

    def _get(self, name: str, amount: int) -> bool:
        if name in self.recipes or name not in self.names:
            return False
        self.inventory[name] = self.inventory.get(name, 0) + amount
        return True

    def _craft(self, item: str, using: dict[str, int]) -> bool:
        if any(self.inventory.get(name, 0) < amount for name, amount in using.items()):
            return False
        for recipe in self.recipes.get(item, []):
            if self._fits(recipe, dict(using)):
                for name, amount in using.items():
                    self.inventory[name] -= amount
                self.inventory[item] = self.inventory.get(item, 0) + recipe.count
                return True
        return False

    def _fits(self, recipe: Recipe, using: dict[str, int]) -> bool:
        for ingredient, amount in recipe.using:
            used = next((name for name in names_of(recipe, ingredient) if name in using), None)
            if used is None or using.pop(used) != amount:
                return False
        return not using
