"""The effects of `get` and `craft` on an inventory, and their preconditions. Independent of goals and prompts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from agentgym_envs.worlds.textcraft.commands import Command, Craft, Get, Refusal, read
from agentgym_envs.worlds.textcraft.recipes import Recipe, load_table

Inventory = dict[str, int]
"""The held items and their amounts, which are never zero."""


_CACHED_CHARS = 256
"""Length of a command up to which what it means is cached. No recipe's line is longer."""


def understand(text: str) -> Command:
    """Parse `text` and check it against the recipes, but not the inventory. Cached, since agents repeat commands.

    Raises:
        Refusal: if `text` is not a command, gathers an item that has to be crafted, or matches no recipe.
    """
    return _cached(text) if len(text) <= _CACHED_CHARS else _understand(text)


def _understand(text: str) -> Command:
    command = read(text)
    table = load_table()
    if isinstance(command, Get) and command.item not in table.gathered:
        raise Refusal(f"{command.item} can't be gathered, it has to be crafted: {_lines(table.of[command.item])}")
    if isinstance(command, Craft):
        _check_recipe(command)
    return command


_cached = lru_cache(maxsize=4096)(_understand)


def gather(command: Get, held: Inventory) -> None:
    """Add gathered items to `held`. The command must come from `understand`."""
    held[command.item] = held.get(command.item, 0) + command.amount


def craft(command: Craft, held: Inventory) -> None:
    """Convert items in `held` into others. The command must come from `understand`.

    Raises:
        Refusal: if an ingredient is missing; `held` is unchanged then.
    """
    used = _taken(command, held)
    for item, amount in used.items():
        held[item] -= amount
        if not held[item]:
            del held[item]
    held[command.item] = held.get(command.item, 0) + command.amount


def _check_recipe(command: Craft) -> None:
    """Raise `Refusal` unless the command matches a recipe or a multiple of one."""
    recipes = load_table().of.get(command.item, ())
    if not recipes:
        raise Refusal(f"{command.item} can't be crafted, it has to be gathered: get {command.amount} {command.item}")
    shares = [(recipe, _shares(recipe, command.using)) for recipe in recipes]
    near = [(recipe, share) for recipe, share in shares if share is not None]
    for recipe, share in near:
        times, over = divmod(command.amount, recipe.count)
        if not over and share == [amount * times for _, amount in recipe.using]:
            return
    if near:
        raise Refusal(f"The amounts are wrong. They go together like this, or a multiple: {_lines(r for r, _ in near)}")
    raise Refusal(f"{command.item} can't be crafted from that. What makes it: {_lines(recipes)}")


def _shares(recipe: Recipe, using: dict[str, int]) -> list[int] | None:
    """Return how much of each ingredient `using` provides; None if an ingredient is missing or an item is unused."""
    shares = [sum(n for name, n in using.items() if name in i.accepts) for i, _ in recipe.using]
    return shares if all(shares) and sum(shares) == sum(using.values()) else None


def _taken(command: Craft, held: Inventory) -> Inventory:
    """Return the consumed items. For a named set, members are taken in order; smaller sets are filled first."""
    sets = load_table().sets
    taken: Inventory = {}
    missing: list[str] = []
    for name, amount in sorted(command.using.items(), key=lambda entry: len(sets.get(entry[0], ()))):
        short = amount
        for item in sets.get(name, (name,)):
            here = min(short, held.get(item, 0) - taken.get(item, 0))
            if here > 0:
                taken[item] = taken.get(item, 0) + here
                short -= here
        if short:
            missing.append(f"{amount} {name} needed, {amount - short} held")
    if missing:
        raise Refusal(f"There is not enough: {'; '.join(missing)}.")
    return taken


def _lines(recipes: Iterable[Recipe]) -> str:
    return "; ".join(recipe.line for recipe in recipes)
