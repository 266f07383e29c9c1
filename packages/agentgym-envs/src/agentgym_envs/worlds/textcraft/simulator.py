"""What `get` and `craft` do to an inventory, or why they can't. Knows no goal and no prompt."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from agentgym_envs.worlds.textcraft.commands import Command, Craft, Get, Refusal, read
from agentgym_envs.worlds.textcraft.recipes import Recipe, load_table

Inventory = dict[str, int]
"""Items held and how many of each; never zero."""


@lru_cache(maxsize=4096)
def understand(text: str) -> Command:
    """The command in `text`, if the recipes allow it; what is held is another matter. Agents repeat each other.

    Raises:
        Refusal: when it is no command, gathers what has to be crafted, or crafts by no recipe.
    """
    command = read(text)
    table = load_table()
    if isinstance(command, Get) and command.item not in table.gathered:
        raise Refusal(f"{command.item} can't be gathered, it has to be crafted: {_lines(table.of[command.item])}")
    if isinstance(command, Craft):
        _check_recipe(command)
    return command


def gather(command: Get, held: Inventory) -> None:
    """Put gathered items into `held`. The command is one that `understand` gave."""
    held[command.item] = held.get(command.item, 0) + command.amount


def craft(command: Craft, held: Inventory) -> None:
    """Turn items in `held` into others. The command is one that `understand` gave.

    Raises:
        Refusal: when something is missing; nothing has changed then.
    """
    used = _taken(command, held)
    for item, amount in used.items():
        held[item] -= amount
        if not held[item]:
            del held[item]
    held[command.item] = held.get(command.item, 0) + command.amount


def _check_recipe(command: Craft) -> None:
    """Raise `Refusal` unless there is a recipe that makes and uses what the command says, or a multiple of it."""
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
    """How much of each ingredient `using` gives, or None when something is missing or of no use."""
    shares = [sum(n for name, n in using.items() if name in i.accepts) for i, _ in recipe.using]
    return shares if all(shares) and sum(shares) == sum(using.values()) else None


def _taken(command: Craft, held: Inventory) -> Inventory:
    """The items that are used up. Where a set is named, its members are taken as they come, smaller sets first."""
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
