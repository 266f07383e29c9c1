"""Plans in words: the purpose of a step, which ingredients are held, and what comes next.

Uses a plan and an inventory only; independent of the planner and of episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from agentgym_envs.worlds.textcraft.expert import Amounts, Step


def thought(goal: str, steps: Sequence[Step], held: Amounts) -> str:
    """Return the reason for the first of `steps`, a plan from `held` to `goal`, on one line."""
    if not steps:
        return f"I hold the goal: {goal}."
    step, *later = steps
    if step.recipe is None:
        return f"{_need(step.item, later, held)} It can be gathered."
    have = _and(f"{held[item]} {item}" for item, _ in step.using)
    times = step.amount // step.recipe.count
    recipe = f"{'The' if times == 1 else f'{times} times the'} recipe '{step.recipe.line}' makes it, and I have {have}."
    return f"{_need(step.item, later, held)} {recipe}" if later else f"That leaves the goal, {goal}. {recipe}"


def outline(goal: str, steps: Sequence[Step], held: Amounts) -> str:
    """Describe a plan from `held` to `goal`: one line for the inventory, one per craft, one per run of gets."""
    have = _and(f"{held[item]} {item}" for item in sorted(held)) or "nothing"
    rows = [f"The goal is {goal}. I have {have}."]
    for gathered, group in groupby(steps, lambda step: step.recipe is None):
        if gathered:
            rows.append(f"{len(rows)}. Gather {_and(f'{step.amount} {step.item}' for step in group)}.")
        else:
            for step in group:
                using = _and(f"{amount} {item}" for item, amount in step.using)
                rows.append(f"{len(rows)}. Craft {step.amount} {step.item} from {using}.")
    return "\n".join(rows)


def _need(item: str, later: Iterable[Step], held: Amounts) -> str:
    """State how many of `item` the later steps use, for what, as which ingredient, and how many are held."""
    uses = [(step, amount) for step in later for used, amount in step.using if used == item]
    wanted = _and(f"{step.amount} {step.item}" for step, _ in uses)
    names = dict.fromkeys(_ingredient(step, item) for step, _ in uses)
    sets = _and(name for name in names if name != item)
    used_as = f" (as {sets})" if sets else ""
    need = sum(amount for _, amount in uses)
    return f"To craft {wanted} I need {need} {item}{used_as} and have {held.get(item, 0)}."


def _ingredient(step: Step, item: str) -> str:
    """Return the ingredient of the step's recipe that `item` is used for: itself, or a set that contains it."""
    assert step.recipe is not None  # only crafts use something
    return next(ingredient.name for ingredient, _ in step.recipe.using if item in ingredient.members)


def _and(parts: Iterable[str]) -> str:
    *most, last = [*parts] or [""]
    return f"{', '.join(most)} and {last}" if most else last
