"""The tasks of MiniWoB++: each page with a number of seeds, from which the page makes its problem.

Each page has 1,000 tasks for training, with the seeds 0 to 99 and 170 to 1069, 20 for `dev`, with the seeds 100 to 119,
and 50 for `test`, with the seeds 120 to 169. A page whose problem doesn't depend on the seed is the same in all splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from agentgym_envs.core.tasks import SPLITS, Split, Task, Tasks, TaskSet
from agentgym_envs.worlds.webarena.miniwob.page_server import HOST
from agentgym_envs.worlds.webarena.miniwob.pages import pages
from agentgym_envs.worlds.webarena.tasks.task_files import ENV_ID
from agentgym_envs.worlds.webarena.tasks.task_sets import MINIWOB

# `MINIWOB` is also the only eval type of these tasks.
SEEDS: Final[Mapping[Split, Sequence[int]]] = {
    "train": (*range(100), *range(170, 1070)),
    "dev": range(100, 120),
    "test": range(120, 170),
}
"""The seeds of each split."""
INTENT: Final = "Do what the page asks for."
"""The objective that a task has in a list; the page states it when it starts."""


def miniwob_tasks(names: Sequence[str]) -> TaskSet:
    """Return the tasks of these pages, with ids such as `webarena/miniwob/click-button/17`, seed by seed."""
    ids = {
        split: [f"webarena/{MINIWOB}/{name}/{seed}" for seed in seeds for name in names]
        for split, seeds in SEEDS.items()
    }
    train, dev, test = (Tasks(ids[split], _task) for split in SPLITS)
    return TaskSet(train=train, dev=dev, test=test, name="MiniWoB++")


def is_miniwob(task: Mapping[str, Any]) -> bool:
    """Whether a task's payload is that of a page of MiniWoB++."""
    return MINIWOB in task["eval"]["eval_types"]


def _task(task_id: str) -> Task:
    *_, name, seed = task_id.split("/")
    payload = {
        "task_id": f"{name}/{seed}",
        "page": name,
        "seed": int(seed),
        "intent": INTENT,
        "sites": [],
        "start_url": f"http://{HOST}/miniwob/{name}.html",
        "eval": {"eval_types": [MINIWOB]},
    }
    split: Split = next(split for split in SPLITS if int(seed) in SEEDS[split])
    return Task(task_id, ENV_ID, split, name, pages()[name].steps, payload, cluster=name)
