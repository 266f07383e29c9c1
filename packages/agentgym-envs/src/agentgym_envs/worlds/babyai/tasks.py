"""The levels and their tasks. `tasks.json` has the number of turns the oracle took, per level and seed.

`scripts/make_babyai_tasks.py` writes it. A seed that the oracle didn't solve is null and in no task set: the key may be
behind its own door, or the grid too large for the limit on turns. (The oracle solves 72 of these 199 by now; they stay
null, so that the sets stay the same.) OpenDoorsOrderN2Debug and OpenDoorsOrderN4Debug are
left out, since most of their goals are unreachable: Minigrid counts opening the first door as opening a wrong second
one.

Seeds are in one split only, but a small level has few starts: 210 of the 5,995 test tasks begin in the same state, with
the same mission, as a task of train or dev. They are all 64 of OpenRedDoor, 54 of GoToObjS4, 40 of KeyCorridorS3R1, 18
each of OpenRedBlueDoors and OpenRedBlueDoorsDebug, 9 of GoToRedBallNoDists, 4 of OneRoomS8, and one each of GoToObjS6,
OpenTwoDoors and PutNextS4N1.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from agentgym_envs.core.tasks import Split, Task, Tasks, TaskSet

FIRST_SEED: dict[Split, int] = {"train": 0, "test": 1_000_000}
"""The first seed of each split."""


@dataclass(frozen=True, slots=True)
class Level:
    """A level of Minigrid."""

    id: str
    """Minigrid's Gymnasium id."""
    category: str
    train: tuple[int | None, ...]
    """The oracle's turns per seed, from the split's first seed on; None where it failed."""
    test: tuple[int | None, ...]
    """The same for the test split."""

    def turns(self, split: Split) -> tuple[int | None, ...]:
        """Return the oracle's turns per seed of a split."""
        return self.train if split == "train" else self.test


@cache
def all_levels() -> dict[str, Level]:
    """Return the levels by short name, in the order of Minigrid's registry."""
    table = json.loads(resources.files(__package__ or "").joinpath("tasks.json").read_text(encoding="utf-8"))
    return {
        name: Level(entry["id"], entry["category"], tuple(entry["train"]), tuple(entry["test"]))
        for name, entry in table["levels"].items()
    }


def short_name(level: str) -> str:
    """Return `GoToRedBall` for `BabyAI-GoToRedBall-v0`; short names are returned unchanged."""
    return re.sub(r"^BabyAI-|-v\d+$", "", level)


def choose(levels: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the short names of the selected levels in the registry's order; None selects all.

    Raises:
        ValueError: for an unknown level or an empty selection.
    """
    known = all_levels()
    if levels is None:
        return tuple(known)
    names: Any = [levels] if isinstance(levels, str) else levels
    if not isinstance(names, Sequence) or not all(isinstance(level, str) for level in names):
        raise ValueError(f"levels must be a level's name or a list of names, such as 'GoToRedBall', not {levels!r}.")
    selected = {short_name(level) for level in names}
    for name in sorted(selected - known.keys()):
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"There are: {', '.join(known)}."
        raise ValueError(f"There is no level {name!r} among the {len(known)} of agentgym/BabyAI-v0. {hint}")
    if not selected:
        raise ValueError("levels is empty; name at least one level, such as 'GoToRedBall', or leave it out for all.")
    return tuple(name for name in known if name in selected)


@lru_cache(maxsize=64)
def task_set(levels: tuple[str, ...]) -> TaskSet:
    """Return the tasks of these levels, interleaved so that the first tasks of a split are of different levels."""
    return TaskSet(train=Tasks(_ids(levels, "train"), _task), test=Tasks(_ids(levels, "test"), _task))


def _ids(levels: tuple[str, ...], split: Split) -> list[str]:
    solved = {
        name: [seed for seed, turns in enumerate(all_levels()[name].turns(split), FIRST_SEED[split]) if turns]
        for name in levels
    }
    most = max(map(len, solved.values()))
    return [
        f"babyai/{split}/{name}/{seeds[turn]}"
        for turn in range(most)
        for name, seeds in solved.items()
        if turn < len(seeds)
    ]


def _task(task_id: str) -> Task:
    _, split, name, seed = task_id.split("/")
    part: Split = "train" if split == "train" else "test"
    level = all_levels()[name]
    turns = level.turns(part)[int(seed) - FIRST_SEED[part]]
    return Task(
        id=task_id,
        env="agentgym/BabyAI-v0",
        split=part,
        category=level.category,
        difficulty=turns or 0,
        payload={"level": name, "seed": int(seed)},
        cluster=name,
    )
