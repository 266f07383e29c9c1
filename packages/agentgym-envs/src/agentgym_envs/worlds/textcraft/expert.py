"""The planner: finds few commands that lead from an inventory to a goal. Uses the recipes only, no episode state.

One command gathers any amount of an item or applies a recipe any number of times, so a plan costs one command per
distinct item that is still missing. The search is top-down: items are processed in an order in which each item comes
before its ingredients, so that the total need of an item is known when it is processed. It is a branch and bound over
recipes and over the members of sets.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter

from agentgym_envs.worlds.textcraft.recipes import Recipe, load_table

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a plan."""

    item: str
    amount: int
    recipe: Recipe | None = None
    """None if the item is gathered."""
    using: tuple[tuple[str, int], ...] = ()
    """The consumed items and their amounts."""

    @property
    def command(self) -> str:
        """The step in the environment's grammar."""
        if self.recipe is None:
            return f"get {self.amount} {self.item}"
        return f"craft {self.amount} {self.item} using {', '.join(f'{amount} {item}' for item, amount in self.using)}"


@dataclass(frozen=True, slots=True)
class _Graph:
    """Precomputed data on the recipes that does not depend on the goal."""

    recipes: dict[str, tuple[tuple[Recipe, tuple[tuple[str, ...], ...]], ...]]
    """The useful recipes of each crafted item, each with the useful members of each of its ingredients."""
    order: dict[str, int]
    """A topological order: each item's number is greater than those of its possible ingredients."""
    closure: dict[str, frozenset[str]]
    """All items needed on a short (not always the shortest) way to the item, itself included."""


@cache
def _graph() -> _Graph:
    table, inevitable = load_table(), _inevitable()
    recipes = {goal: tuple(_useful(recipe, inevitable) for recipe in table.of[goal]) for goal in table.goals}
    recipes = {goal: tuple((r, useful) for r, useful in ways if all(useful)) for goal, ways in recipes.items()}
    below = {goal: [m for _, useful in ways for members in useful for m in members] for goal, ways in recipes.items()}
    order = {item: number for number, item in enumerate(TopologicalSorter(below).static_order())}
    closure: dict[str, frozenset[str]] = {}
    for item in order:
        ways = [
            frozenset({item}).union(*(min((closure[m] for m in members), key=len) for members in useful))
            for _, useful in recipes.get(item, ())
        ]
        closure[item] = min(ways, key=len, default=frozenset({item}))
    return _Graph(recipes, order, closure)


def _inevitable() -> dict[str, frozenset[str]]:
    """Return, for each item, the items that every way to it requires, itself included."""
    table = load_table()
    through = {item: frozenset({item}) if item in table.gathered else table.items for item in sorted(table.items)}

    def by(recipe: Recipe) -> frozenset[str]:
        each = (frozenset.intersection(*(through[member] for member in i.members)) for i, _ in recipe.using)
        return frozenset({recipe.item}).union(*each)

    changed = True
    while changed:
        changed = False
        for item in table.goals:
            found = frozenset.intersection(*map(by, table.of[item]))
            changed, through[item] = changed or found != through[item], found
    return through


def _useful(recipe: Recipe, inevitable: Mapping[str, frozenset[str]]) -> tuple[Recipe, tuple[tuple[str, ...], ...]]:
    """Return the recipe and its ingredients' members, except those whose own crafting requires the recipe's item.

    For example, a netherite ingot should not be crafted from a block of netherite, which is made of ingots.
    """
    return recipe, tuple(
        tuple(m for m in ingredient.members if recipe.item not in inevitable[m]) for ingredient, _ in recipe.using
    )


def plan(goal: str, held: Amounts) -> list[Step]:
    """Return the shortest plan found from the inventory `held` to one `goal`; empty if the goal is held already.

    From an empty inventory the plan is optimal. Ties between members of a set are broken by a hash that includes the
    goal's name; otherwise every plan would use acacia.
    """
    return _Search(goal, held).run()


class _Search:
    def __init__(self, goal: str, held: Amounts) -> None:
        self.goal = goal
        self.held = held
        self.graph = _graph()
        self.best: tuple[Step, ...] | None = None

    def run(self) -> list[Step]:
        self._expand({self.goal: 1}, ())
        assert self.best is not None, f"nothing leads to {self.goal}"
        return list(reversed(self.best))

    def _expand(self, need: dict[str, int], steps: tuple[Step, ...]) -> None:
        """Plan for the amounts in `need` that aren't held; `steps` are the later steps, already counted as cost."""
        short = [item for item, amount in need.items() if amount > self.held.get(item, 0)]
        if self.best is not None and len(steps) + len(short) >= len(self.best):
            return
        if not short:
            self.best = steps
            return
        item = max(short, key=self.graph.order.__getitem__)
        missing = need[item] - self.held.get(item, 0)
        rest = {other: amount for other, amount in need.items() if other != item}
        if item not in self.graph.recipes:
            self._expand(rest, (*steps, Step(item, missing)))
            return
        for recipe, useful in self.graph.recipes[item]:
            times = -(-missing // recipe.count)
            parts = [(members, amount * times) for members, (_, amount) in zip(useful, recipe.using, strict=True)]
            for using, more in self._ways(sorted(parts, key=lambda part: len(part[0])), rest):
                self._expand(more, (*steps, Step(item, times * recipe.count, recipe, using)))

    def _ways(
        self, parts: list[tuple[tuple[str, ...], int]], need: dict[str, int]
    ) -> Iterator[tuple[tuple[tuple[str, int], ...], dict[str, int]]]:
        """Yield the ways to provide all ingredients of a recipe, each with the resulting need."""
        if not parts:
            yield (), need
            return
        for filling in self._fill(*parts[0], need):
            more = need | {member: need.get(member, 0) + amount for member, amount in filling.items()}
            for using, left in self._ways(parts[1:], more):
                yield (*filling.items(), *using), left

    def _fill(self, members: tuple[str, ...], amount: int, need: Amounts) -> list[dict[str, int]]:
        """Return the ways to provide an ingredient: held items that aren't reserved first, the rest from one member."""
        if len(members) == 1:
            return [{members[0]: amount}]
        taken: dict[str, int] = {}
        for member in members:
            free = min(amount, self.held.get(member, 0) - need.get(member, 0))
            if free > 0:
                taken[member] = free
                amount -= free
        if amount == 0:
            return [taken]
        return [taken | {m: taken.get(m, 0) + amount} for m in self._likely(members, need)]

    def _likely(self, members: tuple[str, ...], need: Amounts) -> list[str]:
        """Return the members worth trying: the cheapest on its own, and those that share work with other needs."""
        closure = self.graph.closure
        reach = frozenset[str]().union(*map(closure.__getitem__, need))

        def work(member: str) -> tuple[int, int, int]:
            alone = len(closure[member] - reach)
            return alone, member.count(" "), zlib.crc32(f"{self.goal}, {member}".encode())

        shares = [member for member in members if closure[member] & reach]
        least = min(members, key=lambda member: (len(closure[member]), work(member)))
        return sorted({*shares, least}, key=work)
