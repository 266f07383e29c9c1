"""AgentGym's task numbers of TextCraft, which can't be converted.

Within each crafting depth they depend on the order in which the file system listed the recipe files, and on the cycles
that this order made AgentGym cut.
"""

from __future__ import annotations

from typing import NoReturn


def from_agentgym(item: str | int) -> NoReturn:
    """Raise KeyError: AgentGym's numbers don't determine the goal."""
    raise KeyError(
        f"The goal of AgentGym's task {item!r} depends on the order in which its server's file system listed the "
        "recipes, so it corresponds to none of our tasks. Use a task of our train or test split instead."
    )


def to_agentgym(task_id: str) -> NoReturn:
    """Raise KeyError: AgentGym's numbers differ between machines."""
    raise KeyError(f"AgentGym numbers TextCraft's goals differently on each machine; {task_id} has no fixed number.")
