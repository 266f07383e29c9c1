"""The recipes of Minecraft 1.16 as plain data. Knows nothing of goals, inventories or an agent's words.

Items go by their readable names (`oak door`). An ingredient is either an item or a set of alternatives (`planks`),
and any of a set's members will do, mixed as one likes: that is how Minecraft's tags work.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources


@dataclass(frozen=True, slots=True, eq=False)
class Ingredient:
    """What goes into a recipe: an item, or any member of a set."""

    name: str
    members: tuple[str, ...]
    """The items that will do; the ingredient itself when it is an item."""
    accepts: frozenset[str]
    """The names that may stand for it in a command: its members, and every set whose members are all among them."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """One way to craft an item; there is one object for each, so identity is equality."""

    item: str
    count: int
    """How many are made at a time."""
    using: tuple[tuple[Ingredient, int], ...]
    """Ingredients and their amounts; no item goes into two of them."""

    @cached_property
    def line(self) -> str:
        """The recipe as the command that carries it out."""
        using = ", ".join(f"{amount} {ingredient.name}" for ingredient, amount in self.using)
        return f"craft {self.count} {self.item} using {using}"


@dataclass(frozen=True)
class Table:
    """All recipes, and what follows from them alone."""

    recipes: tuple[Recipe, ...]
    of: dict[str, tuple[Recipe, ...]]
    """The recipes of each item that has some."""
    sets: dict[str, tuple[str, ...]]
    """The members of each set of alternatives."""
    gathered: frozenset[str]
    """The items that `get` gives: those without a recipe, and a few whose recipes only undo other recipes."""

    @cached_property
    def items(self) -> frozenset[str]:
        """All there is."""
        return self.gathered.union(self.of)

    @cached_property
    def depth(self) -> dict[str, int]:
        """How many crafts lie one upon another at least before one holds an item; 0 for what is gathered."""
        depth = dict.fromkeys(self.gathered, 0)
        level = 0
        while found := [item for item in self.of if item not in depth and self._is_craftable(item, depth)]:
            level += 1
            depth.update(dict.fromkeys(found, level))
        return depth

    @cached_property
    def goals(self) -> tuple[str, ...]:
        """The items that have to be crafted, in alphabetical order."""
        return tuple(sorted(self.of.keys() - self.gathered))

    def _is_craftable(self, item: str, held: Iterable[str]) -> bool:
        return any(
            all(any(member in held for member in ingredient.members) for ingredient, _ in recipe.using)
            for recipe in self.of[item]
        )


@cache
def load_table() -> Table:
    """The table that comes with the package; `scripts/make_textcraft_recipes.py` made it."""
    raw = json.loads(
        resources.files("agentgym_envs.worlds.textcraft").joinpath("recipes.json").read_text(encoding="utf-8")
    )
    sets = {name: tuple(members) for name, members in raw["sets"].items()}
    names = dict.fromkeys(name for _, _, using in raw["recipes"] for name in using)
    ingredients = {name: _ingredient(name, sets) for name in names}
    recipes = tuple(
        Recipe(item, count, tuple((ingredients[name], amount) for name, amount in using.items()))
        for count, item, using in raw["recipes"]
    )
    of: dict[str, tuple[Recipe, ...]] = {}
    for recipe in recipes:
        of[recipe.item] = (*of.get(recipe.item, ()), recipe)
    used = {member for ingredient in ingredients.values() for member in ingredient.members}
    return Table(recipes, of, sets, frozenset(raw["gathered"]) | (used - of.keys()))


def _ingredient(name: str, sets: dict[str, tuple[str, ...]]) -> Ingredient:
    members = sets.get(name, (name,))
    smaller = (other for other, others in sets.items() if set(others) <= set(members))
    return Ingredient(name, members, frozenset(members).union(smaller))
