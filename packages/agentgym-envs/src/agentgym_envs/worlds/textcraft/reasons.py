"""Plans in words: what a step is for, what of it is there, and what comes after. Knows plans and an inventory, and
neither how plans are found nor how an episode goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from agentgym_envs.worlds.textcraft.expert import Amounts, Step


def thought(goal: str, steps: Sequence[Step], held: Amounts) -> str:
    """Why the first of `steps`, a plan from `held` to `goal`, comes next. On one line."""
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
    """All of `steps`, a plan from `held` to `goal`: a line for what is there, one for each craft, and one for whatever
    is gathered in a row.
    """
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
    """How many of `item` the later steps take, for what, as what, and how many are there."""
    takers = [(step, amount) for step in later for used, amount in step.using if used == item]
    wanted = _and(f"{step.amount} {step.item}" for step, _ in takers)
    names = dict.fromkeys(_stands_for(step, item) for step, _ in takers)
    kinds = _and(name for name in names if name != item)
    standing = f" (as {kinds})" if kinds else ""
    need = sum(amount for _, amount in takers)
    return f"To craft {wanted} I need {need} {item}{standing} and have {held.get(item, 0)}."


def _stands_for(step: Step, item: str) -> str:
    """The ingredient of the step's recipe that `item` is used for: itself, or a set that it is in."""
    assert step.recipe is not None  # only crafts use something
    return next(ingredient.name for ingredient, _ in step.recipe.using if item in ingredient.members)


def _and(parts: Iterable[str]) -> str:
    *most, last = [*parts] or [""]
    return f"{', '.join(most)} and {last}" if most else last
