"""AgentGym's numbers of TextCraft's tasks, which can't be known: they follow the order in which a directory
happened to list its recipe files, within each crafting depth, and which cycles that order made it cut.
"""

from __future__ import annotations

from typing import NoReturn


def from_agentgym(item: str | int) -> NoReturn:
    """Raises KeyError: no number there says which goal is meant."""
    raise KeyError(
        f"What AgentGym's {item!r} crafts depends on the order in which its server's file system listed the "
        "recipes, so it names none of our tasks. Ask for a place in our train or test split instead."
    )


def to_agentgym(task_id: str) -> NoReturn:
    """Raises KeyError: no goal has a number that holds on every machine."""
    raise KeyError(f"AgentGym numbers TextCraft's goals anew on each machine; {task_id} has no fixed number.")
