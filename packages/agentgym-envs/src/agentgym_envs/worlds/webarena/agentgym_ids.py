"""AgentGym's numbers of WebArena's tasks, which are WebArena's own: the set `webarena` on the real sites."""

from __future__ import annotations

_PREFIX = "webarena/webarena/"
_TASKS = 812


def from_agentgym(item: str | int) -> str:
    """Our id of one of WebArena's 812 original tasks, such as `webarena_24` or its `idx` 24.

    Raises:
        KeyError: when it is none of them.
    """
    number = str(item).removeprefix("webarena_")
    if not number.isdecimal() or int(number) >= _TASKS:
        raise KeyError(f"AgentGym has no task {item!r}; its ids go from webarena_0 to webarena_{_TASKS - 1}.")
    return f"{_PREFIX}{int(number)}"


def to_agentgym(task_id: str) -> str:
    """AgentGym's id of a task of the set `webarena`, such as `webarena_24`.

    Raises:
        KeyError: when the task is of another set: one on the embedded sites, or an audited one.
    """
    if not task_id.startswith(_PREFIX):
        raise KeyError(f"AgentGym has no task {task_id}; it has WebArena's original ones, {_PREFIX}NUMBER.")
    return f"webarena_{task_id.removeprefix(_PREFIX)}"
