"""The 30 tasks of ScienceWorld with their variations, splits and simplifications. Starts no JVM.

`tasks.json` has, per task, the number of variations in ScienceWorld's own splits (train first, then dev, then test) and
the length of its gold paths. `scripts/make_sciworld_tasks.py` generates it from ScienceWorld.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources

from agentgym_envs.core.tasks import SPLITS, Split, Task, Tasks, TaskSet

ENV = "agentgym/SciWorld-v0"
AGENTGYM = "agentgym"
"""The name of the set of AgentGym's tasks."""
NOT_IN_AGENTGYM = ("5-1", "5-2", "9-1", "9-2", "9-3", "10-1", "10-2")
SIMPLIFICATIONS = (
    "teleportAction",
    "selfWateringFlowerPots",
    "openContainers",
    "openDoors",
    "noElectricalAction",
    "easy",
)
"""ScienceWorld's names. `easy` is all except `openContainers`; it keeps electricity in the tasks that need it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One of ScienceWorld's tasks."""

    name: str
    """Such as `boil`."""
    id: str
    """Its number in ScienceWorld's list, such as `1-1`."""
    category: str
    sizes: tuple[int, int, int]
    """Number of variations in train, dev and test."""
    turns: int
    """Median length of the measured gold paths."""

    @property
    def needs_electricity(self) -> bool:
        """Whether solving it requires electrical connections."""
        return self.id.startswith("3-")

    @property
    def shares_jvm(self) -> bool:
        """False if concurrent games in the same JVM would change the outcome."""
        return self.id not in ("5-2", "10-1", "10-2")

    def variations(self, split: Split) -> range:
        """Return the numbers of the split's variations."""
        index = SPLITS.index(split)
        first = sum(self.sizes[:index])
        return range(first, first + self.sizes[index])

    def split(self, variation: int) -> Split:
        """Return the split of a variation."""
        return next(split for split in SPLITS if variation in self.variations(split))


@cache
def kinds() -> dict[str, Kind]:
    """Return the tasks by name, in the order of ScienceWorld's list."""
    table = json.loads(resources.files(__package__ or "").joinpath("tasks.json").read_text(encoding="utf-8"))
    return {
        name: Kind(name, entry["id"], entry["category"], tuple(entry["variations"]), entry["turns"])
        for name, entry in table["tasks"].items()
    }


def choose(asked: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the tasks selected by name, by number or as the set `agentgym`; None selects all.

    The order is ScienceWorld's.

    Raises:
        ValueError: for an unknown task or an empty selection.
    """
    if asked is None:
        return tuple(kinds())
    by_any_name = {key: {kind.name} for kind in kinds().values() for key in (kind.name, kind.id)}
    by_any_name[AGENTGYM] = {kind.name for kind in kinds().values() if kind.id not in NOT_IN_AGENTGYM}
    chosen: set[str] = set()
    for name in _names("tasks", asked):
        if name not in by_any_name:
            raise ValueError(f"There is no task {name!r} in {ENV}. {_hint(name, by_any_name)}")
        chosen |= by_any_name[name]
    if not chosen:
        raise ValueError("tasks is empty; name at least one, such as 'boil' or '1-1', or leave it out for all.")
    return tuple(name for name in kinds() if name in chosen)


def simplify(asked: str | Sequence[str]) -> tuple[str, ...]:
    """Return the selected simplifications without duplicates, in the order of `SIMPLIFICATIONS`.

    A string may contain several, separated by commas.

    Raises:
        ValueError: for an unknown simplification.
    """
    names = {part.strip() for name in _names("simplifications", asked) for part in name.split(",")} - {""}
    for name in sorted(names.difference(SIMPLIFICATIONS)):
        raise ValueError(f"There is no simplification {name!r} in {ENV}. {_hint(name, SIMPLIFICATIONS)}")
    return tuple(name for name in SIMPLIFICATIONS if name in names)


def _names(option: str, asked: str | Sequence[str]) -> Sequence[str]:
    if isinstance(asked, str):
        return [asked]
    if not isinstance(asked, Sequence) or not all(isinstance(name, str) for name in asked):
        raise ValueError(f"{option} must be a name or a list of names, not {asked!r}.")
    return asked


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=3)
    return f"Did you mean {' or '.join(near)}?" if near else f"There are: {', '.join(known)}."


@lru_cache(maxsize=64)
def task_set(names: tuple[str, ...], variations: int | None = None) -> TaskSet:
    """Return the variations of these tasks, at most `variations` of each task and split.

    They are interleaved, so that the first ones of a split are of different tasks.
    """
    train, dev, test = (Tasks(_ids(names, split, variations), _task) for split in SPLITS)
    return TaskSet(train=train, dev=dev, test=test)


def _ids(names: tuple[str, ...], split: Split, most: int | None) -> list[str]:
    ranges = {name: kinds()[name].variations(split)[:most] for name in names}
    return [
        task_id(name, numbers[turn])
        for turn in range(max(map(len, ranges.values())))
        for name, numbers in ranges.items()
        if turn < len(numbers)
    ]


def task_id(name: str, variation: int) -> str:
    """Return our id of a variation of a task, such as `sciworld/test/boil/21`."""
    return f"sciworld/{kinds()[name].split(variation)}/{name}/{variation}"


def _task(task_id: str) -> Task:
    _, _, name, variation = task_id.split("/")
    kind = kinds()[name]
    payload = {"task": name, "variation": int(variation)}
    return Task(task_id, ENV, kind.split(int(variation)), kind.category, kind.turns, payload, name)
