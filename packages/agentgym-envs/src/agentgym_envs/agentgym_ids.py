"""Conversion between this package's task ids and AgentGym's (arXiv 2406.04151; AgentGym-RL, arXiv 2509.08755).

AgentGym names a task `WORLD_NUMBER`, such as `babyai_123`, and clients request the number from its servers. The module
`agentgym_ids` of each environment maps numbers to its tasks; this module loads it by name. docs/compat.md has the
table.
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
"""The environments of this package by AgentGym's names."""

_MAX_DIGITS = 9
"""The most digits of a number; none of AgentGym's lists is that long."""


def task_id(item_id: str) -> str:
    """Return this package's id of AgentGym's task `item_id`.

    Raises:
        KeyError: if AgentGym has no such environment or task, or this package no equivalent; the message says which.
        gymnasium.error.DependencyNotInstalled: if the environment's extra is missing.
    """
    name, _, number = item_id.rpartition("_")
    world = _world(name, item_id)
    if number.isdecimal() and not (number.isascii() and len(number) <= _MAX_DIGITS):
        raise KeyError(
            f"AgentGym has no task {reprlib.repr(item_id)}: its numbers have at most {_MAX_DIGITS} digits from 0 to 9."
        )
    return world.from_agentgym(item_id)


def item_id(task_id: str) -> str:
    """Return AgentGym's id of this package's task `task_id`. Raises the same errors as the function `task_id`."""
    world = _world(task_id.partition("/")[0], task_id)
    with suppress(ValueError):  # not in the form of an id
        found = world.to_agentgym(task_id)
        if world.from_agentgym(found) == task_id:
            return found
    raise KeyError(f"The task {task_id!r} has no equivalent in AgentGym.")


def _world(name: str, requested_id: str) -> ModuleType:
    if name not in WORLDS:
        raise KeyError(
            f"{requested_id!r} does not belong to an environment that AgentGym and this package share: "
            f"{', '.join(WORLDS)}."
        )
    return importlib.import_module(f"agentgym_envs.worlds.{name}.agentgym_ids")
