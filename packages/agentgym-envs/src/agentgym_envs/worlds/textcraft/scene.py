"""An inventory and the way from it to the goal, as plain data for whoever draws it. Knows no commands and no pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_envs.worlds.textcraft.expert import Amounts, Step


def draw(goal: str, plan: Sequence[Step], held: Amounts) -> dict[str, Any]:
    """The scene of kind `crafting`.

    Args:
        goal: The item.
        plan: The steps to it from what is held; empty once it is.
        held: The inventory.

    Returns:
        `goal`, `inventory` (number of each item), and the `tree` of the goal. A node has the `item`; the `amount` that
        what stands above it takes; how many are `held`; and where that isn't enough for all who take it, `missing`, the
        number still to be made, the `command` that makes it, and its `parts`, which are nodes again. An item that
        several take has its parts only once; elsewhere it is `shared`.
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
