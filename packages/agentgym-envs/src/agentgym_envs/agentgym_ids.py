"""AgentGym's ids (AgentGym, arXiv 2406.04151, and AgentGym-RL, arXiv 2509.08755) and ours.

There a task is `WORLD_NUMBER`, such as `babyai_123`, and its servers are asked for the number. Each world says which of
its tasks that is; here the world is found by its name and loaded, never imported. docs/compat.md has the table.
"""

from __future__ import annotations

import importlib
import reprlib
from contextlib import suppress
from types import ModuleType

WORLDS = {
    "babyai": "agentgym/BabyAI-v0",
    "textcraft": "agentgym/TextCraft-v0",
    "sciworld": "agentgym/SciWorld-v0",
    "searchqa": "agentgym/SearchQA-v0",
    "webarena": "agentgym/WebArena-v0",
}
"""Our worlds by the names AgentGym has for them."""

_DIGITS = 9
"""Of a number at most; no list of AgentGym's is so long."""


def task_id(item_id: str) -> str:
    """Our id of AgentGym's task `item_id`.

    Raises:
        KeyError: when it has no such world or task, or ours has none that is the same; the message says which.
        gymnasium.error.DependencyNotInstalled: when the world's extra is missing.
    """
    name, _, number = item_id.rpartition("_")
    world = _world(name, item_id)
    if number.isdecimal() and not (number.isascii() and len(number) <= _DIGITS):
        raise KeyError(
            f"AgentGym has no task {reprlib.repr(item_id)}: its numbers are up to {_DIGITS} digits from 0 to 9."
        )
    return world.from_agentgym(item_id)


def item_id(task_id: str) -> str:
    """AgentGym's id of our task `task_id`. Raises as the function `task_id`."""
    world = _world(task_id.partition("/")[0], task_id)
    with suppress(ValueError):  # it isn't even of the form of an id
        found = world.to_agentgym(task_id)
        if world.from_agentgym(found) == task_id:
            return found
    raise KeyError(f"There is no task {task_id!r} here that AgentGym could have as well.")


def _world(name: str, asked: str) -> ModuleType:
    if name not in WORLDS:
        raise KeyError(f"{asked!r} is of none of the worlds that AgentGym and we share: {', '.join(WORLDS)}.")
    return importlib.import_module(f"agentgym_envs.worlds.{name}.agentgym_ids")
