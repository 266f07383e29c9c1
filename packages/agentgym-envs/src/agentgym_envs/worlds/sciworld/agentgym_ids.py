"""AgentGym's ids of ScienceWorld's tasks: the variations of 23 tasks, numbered consecutively task by task."""

from __future__ import annotations

from agentgym_envs.worlds.sciworld.tasks import AGENTGYM, NOT_IN_AGENTGYM, choose, kinds, task_id


def from_agentgym(item: str | int) -> str:
    """Convert one of AgentGym's 4,639 ids, such as `sciworld_123` or its `data_idx` 123, to our task id.

    Raises:
        KeyError: if AgentGym has no such id.
    """
    number = str(item).removeprefix("sciworld_")
    left = int(number) if number.isdecimal() else -1
    for name in choose(AGENTGYM):
        count = sum(kinds()[name].sizes)
        if 0 <= left < count:
            return task_id(name, left)
        left -= count
    raise KeyError(f"AgentGym has no task {item!r}; its ids go from sciworld_0 to sciworld_4638.")


def to_agentgym(task: str) -> str:
    """Convert one of our task ids to AgentGym's, such as `sciworld_123`.

    Raises:
        KeyError: if AgentGym doesn't have that task.
    """
    _, _, kind, variation = task.split("/")
    first = 0
    for name in choose(AGENTGYM):
        if name == kind:
            return f"sciworld_{first + int(variation)}"
        first += sum(kinds()[name].sizes)
    raise KeyError(f"AgentGym has no task {task}: it leaves {', '.join(NOT_IN_AGENTGYM)} out.")
