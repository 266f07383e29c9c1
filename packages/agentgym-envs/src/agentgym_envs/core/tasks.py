"""Tasks as plain data, and the lazy sets they come in. Knows nothing about how a world plays them."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, Literal, overload

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
DEV_SHARE = 10
"""One in so many training tasks is set aside for the `dev` split of an environment that brings none."""
FEWEST_TO_SHARE = 20
"""From fewer training tasks than this none is set aside."""
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
    cluster: str = ""
    """The tasks that are alike, such as the instances of a template: who solves one of them often solves the others.
    Intervals treat clusters as what was drawn. Empty where a task is like no other."""


class Tasks(Sequence[Task]):
    """The tasks of one split: a sequence that builds a task when it is asked for, and slices without building any."""

    def __init__(self, ids: Sequence[str], build: Callable[[str], Task]) -> None:
        self.ids = ids
        self.build = build
        """Makes the task of an id."""

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Tasks: ...
    def __getitem__(self, index: int | slice) -> Task | Tasks:
        if isinstance(index, slice):
            return Tasks(self.ids[index], self.build)
        return self.build(self.ids[index])

    def __iter__(self) -> Iterator[Task]:
        return map(self.build, self.ids)

    def digest(self) -> str:
        """SHA-256 over the canonical JSON of every task, in order."""
        sha = hashlib.sha256()
        for task in self:
            sha.update(json.dumps(asdict(task), sort_keys=True, ensure_ascii=True).encode() + b"\n")
        return sha.hexdigest()


class TaskSet:
    """All tasks of a world under the options it was made with, in splits that share no task. A world that offers
    several sets gives each a `name`, which reports then show.

    `train` is for learning, `dev` for every decision on the way, such as which checkpoint is the best one, and `test`
    for the figures at the end. Where `dev` is None, it is carved from `train`: about one in `DEV_SHARE` tasks, chosen
    by a hash of its id alone, so that a task is in the same split under all options that leave its id as it is. Such a
    task keeps its id, and its `split` says `dev`. Of fewer than `FEWEST_TO_SHARE` training tasks none is taken, and
    `dev` is empty, as it is where an empty one is given.
    """

    def __init__(self, *, train: Tasks, test: Tasks, dev: Tasks | None = None, name: str = "") -> None:
        self.name = name
        self.test = test
        self._given = train, dev
        self._by_id: dict[str, tuple[Tasks, int]] = {}

    @property
    def train(self) -> Tasks:
        """The tasks to learn from."""
        return self._train_and_dev[0]

    @property
    def dev(self) -> Tasks:
        """The tasks that decisions in the course of training are made by."""
        return self._train_and_dev[1]

    @cached_property
    def _train_and_dev(self) -> tuple[Tasks, Tasks]:
        """Made when first asked for: to make a world, or to play its test tasks, takes no look at each id."""
        train, dev = self._given
        if dev is not None:
            return train, dev
        if len(train) < FEWEST_TO_SHARE:
            return train, train[:0]
        kept, aside = list[str](), list[str]()
        for task_id in train.ids:
            (aside if _is_set_aside(task_id) else kept).append(task_id)
        return Tasks(kept, train.build), Tasks(aside, lambda task_id: replace(train.build(task_id), split="dev"))

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


def _is_set_aside(task_id: str) -> bool:
    """Whether a training task of this id is in a `dev` split that is carved."""
    digest = hashlib.sha256(task_id.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8]) % DEV_SHARE == 0


def _akin(task_id: str, ids: Iterable[str]) -> Iterator[str]:
    """Some that begin or end as `task_id` does: to compare it with tens of thousands would take a second."""
    head, _, tail = task_id.rpartition("/")
    return islice((i for i in ids if i.startswith(f"{head}/") or i.endswith(f"/{tail}")), _MOST_AKIN)
