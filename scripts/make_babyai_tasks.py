"""Write the task table of agentgym/BabyAI-v0: the seeds of each level that the oracle solves, and its number of turns.

uv run python scripts/make_babyai_tasks.py            write tasks.json and manifest.json (takes minutes)
uv run python scripts/make_babyai_tasks.py --check 2  replay 2 seeds per level and split, and compare
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
from agentgym_envs.core.registration import WORLDS
from agentgym_envs.core.tasks import SPLITS, Split, Task
from agentgym_envs.worlds.babyai import tasks
from agentgym_envs.worlds.babyai.env import BabyAI

SEEDS: dict[Split, int] = {"train": 512, "test": 64}
FEWEST: dict[Split, int] = {"train": 256, "test": 32}
FOLDER = Path(tasks.__file__).parent
LIMIT = next(world.max_episode_steps for world in WORLDS if world.id == "agentgym/BabyAI-v0")

# The category of a level is the first of these that is a prefix of its name, or else the last that its name contains.
CATEGORIES = (
    "GoToImpUnlock",
    "GoToSeq",
    "GoTo",
    "OpenDoorsOrder",
    "Open",
    "PutNext",
    "Pickup",
    "KeyInBox",
    "KeyCorridor",
    "ActionObjDoor",
    "FindObj",
    "OneRoom",
    "MoveTwoAcross",
    "SynthLoc",
    "SynthSeq",
    "Synth",
    "BossLevel",
    "Unlock",
)


def category(name: str) -> str:
    """Return the category of a level, by which reports average."""
    begins = (group for group in CATEGORIES if name.startswith(group))
    contains = (group for group in reversed(CATEGORIES) if group in name)
    return next(begins, None) or next(contains)


def skeleton() -> dict[str, dict[str, object]]:
    """Return Minigrid's BabyAI levels in the order of its registry, with every seed marked as solved."""
    import minigrid  # noqa: F401 - registers the levels

    ids = [level_id for level_id in gymnasium.registry if level_id.startswith("BabyAI-")]
    unknown = {split: [1] * count for split, count in SEEDS.items()}
    names = {tasks.short_name(level_id): level_id for level_id in ids}
    return {name: {"id": level_id, "category": category(name), **unknown} for name, level_id in names.items()}


def turns(world: BabyAI, task: Task) -> int | None:
    """Return the oracle's number of turns, or None if it doesn't succeed within the environment's limit."""
    world.reset(options={"task": task.id})
    for turn in range(1, LIMIT + 1):
        *_, terminated, truncated, info = world.step(world.oracle())
        if terminated or truncated:
            return turn if info["success"] else None
    return None


def seeded(world: BabyAI, name: str, split: Split) -> Iterator[Task]:
    """Yield the tasks of the seeds of `SEEDS`, in order, including those of `train` that are held out as `dev`."""
    first = tasks.FIRST_SEED[split]
    return (world.tasks[f"babyai/{split}/{name}/{seed}"] for seed in range(first, first + SEEDS[split]))


def solved(name: str, entry: dict[str, object]) -> dict[str, object]:
    """Return the entry of a level with the oracle's number of turns for each seed."""
    world = BabyAI(levels=name)
    found = {split: [turns(world, task) for task in seeded(world, name, split)] for split in SEEDS}
    report = ", ".join(f"{split} {sum(t is not None for t in ts)} of {len(ts)}" for split, ts in found.items())
    print(f"{name}: {report}", flush=True)
    return {**entry, **found}


def write(table: dict[str, dict[str, object]]) -> None:
    """Write `tasks.json`, one level per line."""
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(entry, separators=(',', ':'))}" for name, entry in table.items()
    )
    (FOLDER / "tasks.json").write_text(f'{{"levels": {{\n{lines}\n}}}}\n', encoding="utf-8")
    tasks.all_levels.cache_clear()
    tasks.task_set.cache_clear()


def check(count: int) -> int:
    """Replay the first `count` tasks of each level and split; return the number that differ from the table."""
    wrong = 0
    for name in tasks.all_levels():
        world = BabyAI(levels=name)
        for task in (task for split in SPLITS for task in world.tasks.split(split)[:count]):
            found = turns(world, task)
            if found != task.difficulty:
                wrong += 1
                print(f"{task.id}: the table says {task.difficulty} turns, the oracle took {found}.")
    print("The table holds." if not wrong else f"{wrong} tasks differ; run without --check and commit the result.")
    return wrong


def main() -> int:
    """Write the table, or check it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", type=int, metavar="N", help="play N tasks per level and split again and compare")
    asked = parser.parse_args()
    if asked.check is not None:
        return min(1, check(asked.check))
    table = skeleton()
    write(table)
    table = {name: solved(name, entry) for name, entry in table.items()}
    enough = {n for n, e in table.items() if all(len(e[s]) - e[s].count(None) >= FEWEST[s] for s in SEEDS)}
    print("Left out:", sorted(table.keys() - enough) or "none")
    write({name: entry for name, entry in table.items() if name in enough})
    manifest = tasks.task_set(tasks.choose(None)).manifest()
    (FOLDER / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
