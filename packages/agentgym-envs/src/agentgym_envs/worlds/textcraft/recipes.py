"""The recipes of Minecraft 1.16 as plain data. Independent of goals, inventories and commands.

Items have readable names (`oak door`). An ingredient is either an item or a set of alternatives (`planks`) whose
members can be mixed freely, as with Minecraft's tags.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources


@dataclass(frozen=True, slots=True, eq=False)
class Ingredient:
    """An ingredient of a recipe: an item, or any member of a set."""

    name: str
    members: tuple[str, ...]
    """The items that can be used; the ingredient itself if it is an item."""
    accepts: frozenset[str]
    """The names accepted for it in a command: its members, and all sets that are subsets of it."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """One way to craft an item. Each recipe is a single object, compared by identity."""

    item: str
    count: int
    """The amount that one application yields."""
    using: tuple[tuple[Ingredient, int], ...]
    """Ingredients and their amounts; no item is a member of two of them."""

    @cached_property
    def line(self) -> str:
        """The recipe as a craft command."""
        using = ", ".join(f"{amount} {ingredient.name}" for ingredient, amount in self.using)
        return f"craft {self.count} {self.item} using {using}"


@dataclass(frozen=True)
class Table:
    """All recipes, with data derived from them."""

    recipes: tuple[Recipe, ...]
    of: dict[str, tuple[Recipe, ...]]
    """The recipes by item."""
    sets: dict[str, tuple[str, ...]]
    """The members of each set of alternatives."""
    gathered: frozenset[str]
    """The items that `get` gives: those without a recipe, and a few whose recipes only reverse other recipes."""

    @cached_property
    def items(self) -> frozenset[str]:
        """All items."""
        return self.gathered.union(self.of)

    @cached_property
    def depth(self) -> dict[str, int]:
        """The crafting depth by item: the minimum number of consecutive crafts to get it; 0 if it is gathered."""
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

    @cached_property
    def interchangeable(self) -> tuple[tuple[str, ...], ...]:
        """See `TextCraft.interchangeable_names`."""
        fixed = {*self.sets, *(member for members in self.sets.values() for member in members)}
        crafted, both = self.of.keys() - self.gathered, self.of.keys() & self.gathered
        kinds = (crafted, both, self.gathered - both)
        return (*(tuple(sorted(kind - fixed)) for kind in kinds), *((name,) for name in sorted(fixed)))

    def _is_craftable(self, item: str, held: Iterable[str]) -> bool:
        return any(
            all(any(member in held for member in ingredient.members) for ingredient, _ in recipe.using)
            for recipe in self.of[item]
        )


@cache
def load_table() -> Table:
    """Return the table that comes with the package, written by `scripts/make_textcraft_recipes.py`."""
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
