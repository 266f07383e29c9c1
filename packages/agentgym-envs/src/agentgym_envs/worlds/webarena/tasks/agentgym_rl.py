"""The WebArena tasks of the AgentGym-RL paper (arXiv 2509.08755): 372 to train on and 50 to test on.

The numbers are those of the files `webarena_train.json` and `webarena_test.json` in its repository. They are WebArena's
own `task_id`s, and the tasks keep the ids that they have in the set `webarena`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from agentgym_envs.core.tasks import Task

AGENTGYM_RL = "webarena-agentgym-rl"
"""The name of the task set."""
TEST = (
    *(4, 6, 22, 23, 24, 27, 28, 29, 36, 60, 65, 67, 74, 95, 108, 110, 115, 122, 123, 128, 158, 165, 168, 203, 214),
    *(215, 222, 228, 238, 239, 247, 251, 255, 264, 278, 280, 300, 318, 328, 365, 378, 381, 386, 387, 526, 535, 537),
    *(598, 680, 763),
)
_IN_NEITHER = (8, 57, 346)
_LAST = ((424, 428), (430, 430), (676, 679), (737, 741), (757, 762), (764, 767), (784, 788))
TRAIN = (
    *(number for number in range(389) if number not in {*TEST, *_IN_NEITHER}),
    *(number for first, last in _LAST for number in range(first, last + 1)),
)


def split_tasks(original: Iterable[Task]) -> tuple[Task, ...]:
    """Return those of WebArena's original tasks that the paper used, with its splits."""
    splits = dict.fromkeys(map(str, TRAIN), "train") | dict.fromkeys(map(str, TEST), "test")
    numbered = ((task, task.id.rpartition("/")[2]) for task in original)
    return tuple(replace(task, split=splits[number]) for task, number in numbered if number in splits)
