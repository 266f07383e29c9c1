"""Tasks as plain data, and the lazy sets they come in. Knows nothing about how a world plays them."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, Literal, overload

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
_MOST_AKIN = 1_000


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do in one world."""

    id: str
    """Stable name such as `textcraft/test/17`."""
    env: str
    """The Gymnasium id of the world, such as `agentgym/TextCraft-v0`."""
    split: Split
    category: str
    """The group that reports average over."""
    difficulty: int
    """Grows with the number of steps a good player needs; its unit is the world's."""
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the world needs to build the task: JSON values only."""


class Tasks(Sequence[Task]):
    """The tasks of one split: a sequence that builds a task when it is asked for, and slices without building any."""

    def __init__(self, ids: Sequence[str], build: Callable[[str], Task]) -> None:
        self.ids = ids
        self._build = build

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Tasks: ...
    def __getitem__(self, index: int | slice) -> Task | Tasks:
        if isinstance(index, slice):
            return Tasks(self.ids[index], self._build)
        return self._build(self.ids[index])

    def __iter__(self) -> Iterator[Task]:
        return map(self._build, self.ids)

    def digest(self) -> str:
        """SHA-256 over the canonical JSON of every task, in order."""
        sha = hashlib.sha256()
        for task in self:
            sha.update(json.dumps(asdict(task), sort_keys=True, ensure_ascii=True).encode() + b"\n")
        return sha.hexdigest()


class TaskSet:
    """All tasks of a world under the options it was made with, in splits that share no task. Where a world has no
    `dev` split, it is empty. A world that offers several sets gives each a `name`, which reports then show.
    """

    def __init__(self, *, train: Tasks, test: Tasks, dev: Tasks | None = None, name: str = "") -> None:
        self.name = name
        self.train = train
        self.dev = train[:0] if dev is None else dev
        self.test = test
        self._by_id: dict[str, tuple[Tasks, int]] = {}

    def split(self, name: Split) -> Tasks:
        """The tasks of the split `train`, `dev` or `test`."""
        return {"train": self.train, "dev": self.dev, "test": self.test}[name]

    def __len__(self) -> int:
        return sum(len(self.split(name)) for name in SPLITS)

    def __iter__(self) -> Iterator[Task]:
        for name in SPLITS:
            yield from self.split(name)

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._index()

    def __getitem__(self, task_id: str) -> Task:
        """The task of that id.

        Raises:
            KeyError: when there is none; the message names the nearest ids.
        """
        index = self._index()
        if task_id not in index:
            near = difflib.get_close_matches(str(task_id), _akin(str(task_id), index), n=3)
            hint = f"Did you mean {' or '.join(near)}?" if near else f"Ids look like {next(iter(index), 'none')}."
            raise KeyError(f"There is no task {task_id!r} among the {len(self)} of this world. {hint}")
        tasks, position = index[task_id]
        return tasks[position]

    def manifest(self) -> dict[str, dict[str, Any]]:
        """Number and digest of the tasks per split; committed beside each world, so that a set can't change unseen."""
        splits = {name: self.split(name) for name in SPLITS}
        return {name: {"tasks": len(tasks), "sha256": tasks.digest()} for name, tasks in splits.items() if tasks}

    def _index(self) -> dict[str, tuple[Tasks, int]]:
        if not self._by_id:
            self._by_id = {
                task_id: (tasks, i) for tasks in map(self.split, SPLITS) for i, task_id in enumerate(tasks.ids)
            }
        return self._by_id


def _akin(task_id: str, ids: Iterable[str]) -> Iterator[str]:
    """Some that begin or end as `task_id` does: to compare it with tens of thousands would take a second."""
    head, _, tail = task_id.rpartition("/")
    return islice((i for i in ids if i.startswith(f"{head}/") or i.endswith(f"/{tail}")), _MOST_AKIN)
