"""The inventory and the crafting tree of the goal as plain data for viewers. Independent of rendering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_envs.worlds.textcraft.expert import Amounts, Step


def draw(goal: str, plan: Sequence[Step], held: Amounts) -> dict[str, Any]:
    """Return the scene of kind `crafting`.

    Args:
        goal: The goal item.
        plan: The steps from the inventory to the goal; empty once it is held.
        held: The inventory.

    Returns:
        `goal`, `inventory` (amount of each item), and the `tree` of the goal. A node has the `item`, the `amount` that
        its parent uses, and how many are `held`. If these don't suffice for all parents, it also has `missing`, the
        amount still to be made, the `command` that makes it, and its `parts`, which are nodes again. An item with
        several parents has its parts only once; in other places it is `shared`.
    """
    inventory = {item: held[item] for item in sorted(held)}
    return {"kind": "crafting", "goal": goal, "inventory": inventory, "tree": _Tree(plan, held).node(goal, 1)}


class _Tree:
    def __init__(self, plan: Sequence[Step], held: Mapping[str, int]) -> None:
        self._steps = {step.item: step for step in plan}
        self._held = held
        self._drawn: set[str] = set()

    def node(self, item: str, amount: int) -> dict[str, Any]:
        step = self._steps.get(item)
        node: dict[str, Any] = {"item": item, "amount": amount, "held": self._held.get(item, 0)}
        if step is None:
            return {**node, "missing": 0}
        node |= {"missing": step.amount, "command": step.command, "crafted": step.recipe is not None}
        if item in self._drawn:
            return {**node, "shared": True}
        self._drawn.add(item)
        return {**node, "parts": [self.node(part, taken) for part, taken in step.using]}
