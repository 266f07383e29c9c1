"""Tasks as plain data, and the lazy sets that contain them."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, overload

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
DEV_SHARE = 10
"""One in this many training tasks goes to the `dev` split, for an environment that doesn't define one."""
FEWEST_TO_SHARE = 20
"""With fewer training tasks than this, `dev` is empty."""
_MAX_SIMILAR = 1_000


@dataclass(frozen=True, slots=True)
class Task:
    """A task of one environment."""

    id: str
    """A stable name such as `textcraft/test/17`."""
    env: str
    """The Gymnasium id of the environment, such as `agentgym/TextCraft-v0`."""
    split: Split
    category: str
    """The group over which reports average."""
    difficulty: int
    """Grows with the number of steps that a good policy needs. The environment defines the unit."""
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The data from which the environment builds the task: JSON values only."""
    cluster: str = ""
    """The cluster of similar tasks, such as the instances of a template: policies that solve one often solve the
    others. Confidence intervals treat clusters as the sampling unit. Empty for a task without similar ones."""


class Tasks(Sequence[Task]):
    """The tasks of one split: a sequence that builds a task on access. Slicing builds none."""

    def __init__(self, ids: Sequence[str], build: Callable[[str], Task]) -> None:
        self.ids = ids
        self.build = build
        """Builds the task with a given id."""

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
        """Return the SHA-256 over the canonical JSON of every task, in order."""
        sha = hashlib.sha256()
        for task in self:
            sha.update(json.dumps(asdict(task), sort_keys=True, ensure_ascii=True).encode() + b"\n")
        return sha.hexdigest()


class TaskSet:
    """All tasks of an environment under its options, in disjoint splits.

    An environment that offers several sets gives each a `name`, which reports show.

    `train` is for learning, `dev` for decisions during training, such as the choice of the best checkpoint, and `test`
    for the final metrics. If `dev` is None, it is split off `train`: about one in `DEV_SHARE` tasks, chosen by a hash
    of the id alone, so that a task is in the same split under all options that keep its id; `split_key` maps ids to the
    part of them that is hashed. Such a task keeps its id, and its `split` becomes `dev`. With fewer than
    `FEWEST_TO_SHARE` training tasks, or if an empty `dev` is given, `dev` is empty.
    """

    def __init__(
        self,
        *,
        train: Tasks,
        test: Tasks,
        dev: Tasks | None = None,
        name: str = "",
        split_key: Callable[[str], str] = str,
    ) -> None:
        self.name = name
        self.test = test
        self._split_key = split_key
        self._given = train, dev
        self._by_id: dict[str, tuple[Tasks, int]] = {}

    @property
    def train(self) -> Tasks:
        """The tasks for learning."""
        return self._train_and_dev[0]

    @property
    def dev(self) -> Tasks:
        """The held-out tasks for decisions during training."""
        return self._train_and_dev[1]

    @cached_property
    def _train_and_dev(self) -> tuple[Tasks, Tasks]:
        """Computed on first access, since making an environment or playing its test tasks shouldn't hash every id."""
        train, dev = self._given
        if dev is not None:
            return train, dev
        if len(train) < FEWEST_TO_SHARE:
            return train, train[:0]
        kept, aside = list[str](), list[str]()
        for task_id in train.ids:
            (aside if _is_set_aside(self._split_key(task_id)) else kept).append(task_id)
        return Tasks(kept, train.build), Tasks(aside, lambda task_id: replace(train.build(task_id), split="dev"))

    def split(self, name: Split) -> Tasks:
        """Return the tasks of the split `train`, `dev` or `test`."""
        return {"train": self.train, "dev": self.dev, "test": self.test}[name]

    def __len__(self) -> int:
        return sum(len(self.split(name)) for name in SPLITS)

    def __iter__(self) -> Iterator[Task]:
        for name in SPLITS:
            yield from self.split(name)

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._index()

    def __getitem__(self, task_id: str) -> Task:
        """Return the task with that id.

        Raises:
            KeyError: if there is none; the message names the nearest ids.
        """
        index = self._index()
        if not isinstance(task_id, str) or task_id not in index:
            near = _nearest(str(task_id), index)
            hint = f"Did you mean {' or '.join(near)}?" if near else f"Ids look like {next(iter(index), 'none')}."
            raise KeyError(f"There is no task {task_id!r} among the {len(self)} of this environment. {hint}")
        tasks, position = index[task_id]
        return tasks[position]

    def manifest(self) -> dict[str, dict[str, Any]]:
        """Return the number and digest of the tasks per split.

        The manifest is committed next to each environment, so that a change of the set can't go unnoticed.
        """
        splits = {name: self.split(name) for name in SPLITS}
        return {name: {"tasks": len(tasks), "sha256": tasks.digest()} for name, tasks in splits.items() if tasks}

    def _index(self) -> dict[str, tuple[Tasks, int]]:
        if not self._by_id:
            self._by_id = {
                task_id: (tasks, i) for tasks in map(self.split, SPLITS) for i, task_id in enumerate(tasks.ids)
            }
        return self._by_id


def _is_set_aside(key: str) -> bool:
    """Whether a training task with this key belongs to a `dev` split that is split off `train`."""
    digest = hashlib.sha256(key.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8]) % DEV_SHARE == 0


def _nearest(task_id: str, ids: Iterable[str]) -> list[str]:
    """Return up to three ids to suggest for an unknown one: those with the same last part, or else similar ones with
    the same beginning. Comparing with tens of thousands would take a second.
    """
    head, _, tail = task_id.rpartition("/")
    if same := [known for known in ids if known.rpartition("/")[2] == tail][:_MAX_SIMILAR]:
        return difflib.get_close_matches(task_id, same, n=3, cutoff=0)
    siblings = [known for known in ids if known.startswith(f"{head}/")][:_MAX_SIMILAR]
    return difflib.get_close_matches(task_id, siblings, n=3)
