"""The task set of an environment on a server: ids are fetched up front, tasks page by page on access."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, NamedTuple

from agentgym_envs.core.tasks import SPLITS, Split, Task, Tasks, TaskSet

_IDS_PER_PAGE = 1_000
_TASKS_PER_PAGE = 250
_CACHED_PAGES = 64


class Page(NamedTuple):
    """Some tasks of a split."""

    name: str
    """Name of the task set."""
    ids: list[str]
    tasks: list[Task]
    """Empty if only ids were asked for."""
    total: int
    """Number of the split's tasks."""


Fetch = Callable[[str], Awaitable[Page]]
"""Returns a page, given a path below a session of the environment."""
FetchNow = Callable[[str], Page]
"""A blocking version of `Fetch`, to be called outside the loop's thread."""


def read_page(found: Any) -> Page:
    """Return the page in a server's response.

    Raises:
        ValueError, KeyError, TypeError: if it is another response.
    """
    tasks = [Task(**entry) for entry in found["tasks"] if not isinstance(entry, str)]
    ids = [task.id for task in tasks] or list(map(str, found["tasks"]))
    return Page(str(found["name"]), ids, tasks, int(found["total"]))


async def load(fetch: Fetch, fetch_now: FetchNow) -> TaskSet:
    """Load the task set of the environment behind `fetch`.

    Raises:
        Exception: The errors of `fetch`.
    """
    pages = {split: await _ids(fetch, split) for split in SPLITS}
    splits = {split: Tasks(pages[split][1], _TaskLoader(split, pages[split][1], fetch_now)) for split in SPLITS}
    return TaskSet(train=splits["train"], dev=splits["dev"], test=splits["test"], name=pages["train"][0])


async def _ids(fetch: Fetch, split: Split) -> tuple[str, list[str]]:
    """Return the name of the task set and the ids of one of its splits."""
    ids: list[str] = []
    while True:
        page = await fetch(f"tasks?split={split}&offset={len(ids)}&limit={_IDS_PER_PAGE}&fields=ids")
        ids += page.ids
        if len(ids) >= page.total or not page.ids:
            return page.name, ids


class _TaskLoader:
    """Fetches the page of a task id. The most recent pages are cached."""

    def __init__(self, split: Split, ids: list[str], fetch: FetchNow) -> None:
        self._split = split
        self._fetch = fetch
        self._positions = {task_id: position for position, task_id in enumerate(ids)}
        self._page = lru_cache(_CACHED_PAGES)(self._load)

    def __call__(self, task_id: str) -> Task:
        page, index = divmod(self._positions[task_id], _TASKS_PER_PAGE)
        return self._page(page)[index]

    def _load(self, page: int) -> list[Task]:
        offset = page * _TASKS_PER_PAGE
        return self._fetch(f"tasks?split={self._split}&offset={offset}&limit={_TASKS_PER_PAGE}&fields=all").tasks
