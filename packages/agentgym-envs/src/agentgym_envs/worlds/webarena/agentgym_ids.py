"""Convert between this package's task ids and AgentGym's, for WebArena's original tasks: the set `webarena`.

AgentGym uses WebArena's own task numbers.
"""

from __future__ import annotations

_PREFIX = "webarena/webarena/"
_TASKS = 812


def from_agentgym(item: str | int) -> str:
    """Return our id of one of WebArena's 812 original tasks, given as `webarena_24` or as its `idx` 24.

    Raises:
        KeyError: if there is no such task.
    """
    number = str(item).removeprefix("webarena_")
    if not number.isdecimal() or int(number) >= _TASKS:
        raise KeyError(f"AgentGym has no task {item!r}; its ids go from webarena_0 to webarena_{_TASKS - 1}.")
    return f"{_PREFIX}{int(number)}"


def to_agentgym(task_id: str) -> str:
    """Return AgentGym's id, such as `webarena_24`, of a task of the set `webarena`.

    Raises:
        KeyError: if the task is of another set: one on the embedded sites, or of WebArena-Verified.
    """
    if not task_id.startswith(_PREFIX):
        raise KeyError(f"AgentGym has no task {task_id}; it has WebArena's original ones, {_PREFIX}NUMBER.")
    return f"webarena_{task_id.removeprefix(_PREFIX)}"
