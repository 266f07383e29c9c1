"""The tasks of TextCraft and their first observations: the goal, the required recipes, and distractors.

Everything is a function of the goal's name, the options and, where layouts differ between episodes, the seed of the
episode, independent of hash seeds and file order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from random import Random

from agentgym_envs.core.tasks import Split, Task, Tasks, TaskSet
from agentgym_envs.worlds.textcraft.expert import plan
from agentgym_envs.worlds.textcraft.recipes import Recipe, load_table

ENV_ID = "agentgym/TextCraft-v0"
_TEST_SHARE = 5
_GET_AMOUNTS = (*range(1, 10), 16, 32, 64)
"""Amounts up to a full crafting grid, then up to a stack. With fewer, random play reaches 10% of the depth-2 goals."""


@cache
def task_set(depth: tuple[int, int]) -> TaskSet:
    """Return the goals whose crafting depth is in `depth`, both ends included; one in five is in the test split.

    Each split is ordered by hash, so that its first tasks are a fair sample of it.
    """
    table = load_table()
    goals = sorted((g for g in table.goals if depth[0] <= table.depth[g] <= depth[1]), key=_digest)
    ids: dict[Split, list[str]] = {"train": [], "test": []}
    for goal in goals:
        split: Split = "train" if _digest(goal) % _TEST_SHARE else "test"
        ids[split].append(f"textcraft/{split}/{goal.replace(' ', '_')}")
    return TaskSet(train=Tasks(ids["train"], _task), test=Tasks(ids["test"], _task))


def _digest(goal: str) -> int:
    return int.from_bytes(hashlib.sha256(goal.encode()).digest())


def _task(task_id: str) -> Task:
    _, split, name = task_id.split("/")
    goal = name.replace("_", " ")
    depth = load_table().depth[goal]
    return Task(
        task_id, ENV_ID, "test" if split == "test" else "train", f"depth-{depth}", depth, payload={"goal": goal}
    )


@dataclass(frozen=True, slots=True)
class Briefing:
    """The start of an episode."""

    text: str
    """The first observation."""
    actions: tuple[str, ...]
    """The suggested commands."""


_CACHED_DISTRACTORS = 32
"""Number of distractors up to which briefings are cached; one with all recipes takes 100 kB."""


def brief(goal: str, distractors: int, seed: int | None = None) -> Briefing:
    """Return the briefing for a goal, with `distractors` recipes that the shortest plan doesn't use (at most all).

    Which these are, and the order of all, depends on the goal and, if it is given, the seed.
    """
    make = _cached if distractors <= _CACHED_DISTRACTORS else _brief
    return make(goal, distractors, seed)


def _brief(goal: str, distractors: int, seed: int | None) -> Briefing:
    needed = dict.fromkeys(step.recipe for step in plan(goal, {}) if step.recipe is not None)
    rng = Random(goal if seed is None else f"{goal} {seed}")
    listed = _shuffled([*needed, *_distractors(needed, distractors, rng)], rng)
    lines = [recipe.line for recipe in listed]
    gathered = load_table().gathered
    materials = sorted({m for r in listed for i, _ in r.using for m in i.members if m in gathered})
    gets = (f"get {amount} {item}" for item in materials for amount in _GET_AMOUNTS)
    text = "\n".join(["Crafting commands:", *lines, "", f"Goal: craft {goal}."])
    return Briefing(text, ("inventory", *lines, *gets))


_cached = lru_cache(maxsize=4096)(_brief)


def _distractors(needed: Iterable[Recipe], number: int, rng: Random) -> list[Recipe]:
    """Return recipes that aren't needed: half of them share an item with the needed ones, the rest are arbitrary."""
    wanted = set(needed)
    touched = {i.name for r in wanted for i, _ in r.using} | {r.item for r in wanted}
    others = _shuffled((r for r in load_table().recipes if r not in wanted), rng)
    related = (r for r in others if r.item in touched or any(i.name in touched for i, _ in r.using))
    chosen = dict.fromkeys((*islice(related, number // 2), *others))
    return list(islice(chosen, number))


def _shuffled(recipes: Iterable[Recipe], rng: Random) -> list[Recipe]:
    # Python guarantees the same `random()` sequence across versions, but not the same `shuffle` and `sample`.
    return sorted(recipes, key=lambda _: rng.random())
