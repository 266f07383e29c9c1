"""How to get from an inventory to a goal in few commands. Knows the recipes, and no prompt or episode.

One command gathers any number of an item or uses a recipe any number of times, so a plan costs one command for each
distinct item that is still short. The search goes from the goal down: items are taken in an order in which everything
comes before what it is made of, so that the whole need of an item is known when its turn comes. It is a branch and
bound over recipes and over the members of sets.
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
    """None where the item is gathered."""
    using: tuple[tuple[str, int], ...] = ()
    """Items that are used up, and how many of each."""

    @property
    def command(self) -> str:
        """The step in the world's grammar."""
        if self.recipe is None:
            return f"get {self.amount} {self.item}"
        return f"craft {self.amount} {self.item} using {', '.join(f'{amount} {item}' for item, amount in self.using)}"


@dataclass(frozen=True, slots=True)
class _Graph:
    """What the search needs to know of the recipes, whatever the goal."""

    recipes: dict[str, tuple[tuple[Recipe, tuple[tuple[str, ...], ...]], ...]]
    """Those worth planning with, none for what is gathered; and for each of their ingredients the useful members."""
    order: dict[str, int]
    """Every item's number is greater than those of all it can be made of."""
    closure: dict[str, frozenset[str]]
    """What one has to hold on a short way to the item, itself included; not always the shortest."""


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
    """For each item what every way to it goes through, itself included."""
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
    """The recipe, and the members of each ingredient but for those that are made by way of the recipe's own item.

    A block of netherite is no way to an ingot of it.
    """
    return recipe, tuple(
        tuple(m for m in ingredient.members if recipe.item not in inevitable[m]) for ingredient, _ in recipe.using
    )


def plan(goal: str, held: Amounts) -> list[Step]:
    """The steps from the items in `held` to one `goal`, as few as were found; none when it is held already.

    From empty hands no plan is shorter. Among equally good members of a set the goal's name decides, so that not
    every plan begins with acacia.
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
        """Provide what `need` asks for beyond what is held; `steps` come later and are paid already."""
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
        """Ways to provide all parts of a recipe, each with the need that it leaves."""
        if not parts:
            yield (), need
            return
        for filling in self._fill(*parts[0], need):
            more = need | {member: need.get(member, 0) + amount for member, amount in filling.items()}
            for using, left in self._ways(parts[1:], more):
                yield (*filling.items(), *using), left

    def _fill(self, members: tuple[str, ...], amount: int, need: Amounts) -> list[dict[str, int]]:
        """Ways to provide an ingredient: what is held and not spoken for first, the rest from a single member."""
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
        """The members worth trying: the one that is least work alone, and those that share work with other needs."""
        closure = self.graph.closure
        reach = frozenset[str]().union(*map(closure.__getitem__, need))

        def work(member: str) -> tuple[int, int, int]:
            alone = len(closure[member] - reach)
            return alone, member.count(" "), zlib.crc32(f"{self.goal}, {member}".encode())

        shares = [member for member in members if closure[member] & reach]
        least = min(members, key=lambda member: (len(closure[member]), work(member)))
        return sorted({*shares, least}, key=work)
