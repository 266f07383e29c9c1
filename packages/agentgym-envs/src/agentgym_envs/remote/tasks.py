"""The task set of a world on a server: all ids at once, tasks by the page when they are asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

from agentgym_envs.core.tasks import SPLITS, Split, Task, Tasks, TaskSet

_IDS = 1_000
_TASKS = 250
_KEPT_PAGES = 64

Page = dict[str, Any]
Fetch = Callable[[str], Awaitable[Page]]
"""The answer of the server to the rest of a path below a session of the world."""
FetchNow = Callable[[str], Page]
"""The same, waited for by a thread that isn't the loop's."""


async def load(fetch: Fetch, fetch_now: FetchNow) -> TaskSet:
    """The tasks of the world that `fetch` asks.

    Raises:
        Exception: what `fetch` raises.
    """
    found = {split: await _ids(fetch, split) for split in SPLITS}
    splits = {split: Tasks(found[split][1], _Builder(split, found[split][1], fetch_now)) for split in SPLITS}
    return TaskSet(**splits, name=found["train"][0])


async def _ids(fetch: Fetch, split: Split) -> tuple[str, list[str]]:
    """The name of the set, and the ids of one of its splits."""
    ids: list[str] = []
    while True:
        page = await fetch(f"tasks?split={split}&offset={len(ids)}&limit={_IDS}&fields=ids")
        ids += page["tasks"]
        if len(ids) >= page["total"] or not page["tasks"]:
            return page["name"], ids


class _Builder:
    """Makes the task of an id, from the page it lies on; the last pages are kept."""

    def __init__(self, split: Split, ids: list[str], fetch: FetchNow) -> None:
        self._split = split
        self._fetch = fetch
        self._positions = {task_id: at for at, task_id in enumerate(ids)}
        self._page = lru_cache(_KEPT_PAGES)(self._load)

    def __call__(self, task_id: str) -> Task:
        page, place = divmod(self._positions[task_id], _TASKS)
        return self._page(page)[place]

    def _load(self, page: int) -> list[Task]:
        found = self._fetch(f"tasks?split={self._split}&offset={page * _TASKS}&limit={_TASKS}&fields=all")
        return [Task(**task) for task in found["tasks"]]
