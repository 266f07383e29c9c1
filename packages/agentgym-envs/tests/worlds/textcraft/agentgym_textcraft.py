"""The rules of the TextCraft that ADaPT and AgentGym play, told plainly, over the recipes of ours.

There an ingredient that is a tag of the game is met by an item of a recipe group of that name (planks, wool); a tag
that is no such group is an item of its own, gathered and used by the tag's name (oak logs). One of a few alternatives
is named as an item; which, its recipe files say, so here any will do. A command makes a recipe once, whatever number
stands before the item, and its second line isn't read. Of ingots and nuggets,
which make each other, its server keeps the recipe that its file system lists first: here as it was met, iron ingots
are made of nuggets and gold nuggets of ingots.
"""

from __future__ import annotations

import re

from agentgym_envs.worlds.textcraft.expert import plan
from agentgym_envs.worlds.textcraft.recipes import Ingredient, Recipe, load_table

GROUPS = ("planks", "wool")
CUT = (("iron nugget", "iron ingot"), ("gold ingot", "gold nugget"), ("honey bottle", "honey block"))
"""An item, and what there is no recipe to make it of."""


def tag(recipe: Recipe, ingredient: str) -> str | None:
    """The tag in the game's own recipe, where there is one that is an item of its own."""
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
    """What an ingredient may be called in a command that uses it."""
    if name := tag(recipe, ingredient.name):
        return (name,)
    return ("coal",) if ingredient.name == "charcoal or coal" else ingredient.members


def course(goal: str) -> list[str]:
    """Commands that reach `goal` there: our plan with tags for what is gathered by one, and a recipe made at a time."""
    commands: list[str] = []
    wanted: dict[tuple[str, str], int] = {}
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
                wanted[item, name] = wanted.get((item, name), 0) + amount * times
        commands += [f"craft {step.recipe.count} {step.item} using {', '.join(using)}"] * times
    return [f"get {amount} {name}" for (_, name), amount in wanted.items()] + commands


class Original:
    """One game. `say` gives whether a command was carried out."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.recipes: dict[str, list[Recipe]] = {}
        for recipe in load_table().recipes:
            names = [ingredient.name for ingredient, _ in recipe.using]
            of_a_block = len(names) == 1 and names[0].endswith(" block")
            if not of_a_block and not any((recipe.item, name) in CUT for name in names):
                self.recipes.setdefault(recipe.item, []).append(recipe)
        using = [(made, ingredient) for of in self.recipes.values() for made in of for ingredient, _ in made.using]
        self.names = {name for made, ingredient in using for name in names_of(made, ingredient)}

    def say(self, command: str) -> bool:
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
        self.held[name] = self.held.get(name, 0) + amount
        return True

    def _craft(self, item: str, using: dict[str, int]) -> bool:
        if any(self.held.get(name, 0) < amount for name, amount in using.items()):
            return False
        for recipe in self.recipes.get(item, []):
            if self._fits(recipe, dict(using)):
                for name, amount in using.items():
                    self.held[name] -= amount
                self.held[item] = self.held.get(item, 0) + recipe.count
                return True
        return False

    def _fits(self, recipe: Recipe, using: dict[str, int]) -> bool:
        for ingredient, amount in recipe.using:
            given = next((name for name in names_of(recipe, ingredient) if name in using), None)
            if given is None or using.pop(given) != amount:
                return False
        return not using
