"""Write the task table of agentgym/SciWorld-v0: ScienceWorld's variations and splits, and the length of its solutions.

uv run python scripts/make_sciworld_tasks.py            write tasks.json and manifest.json (takes minutes)
uv run python scripts/make_sciworld_tasks.py --check    compare the table with ScienceWorld's variations
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from agentgym_envs.worlds.sciworld import tasks
from agentgym_envs.worlds.sciworld.env import SciWorld
from agentgym_envs.worlds.sciworld.jvm import JvmSpec
from agentgym_envs.worlds.sciworld.jvm_pool import enter, leave
from agentgym_envs.worlds.sciworld.simulator import find_jar, jar_version

FOLDER = Path(tasks.__file__).parent
PLAYED = 1
"""Number of variations of each task and split that are played to measure the length of the solution."""
LIMIT = 300

# ScienceWorld's topics by the first part of a task's number. The first five are the categories of AgentGym-RL's paper,
# which doesn't state the categories of changes of state, circuits and stages of life.
CATEGORIES = {
    "1": "Test-Cond",
    "2": "Measure",
    "3": "Test-Cond",
    "4": "Find",
    "5": "Grow",
    "6": "Chem",
    "7": "Lifespan",
    "8": "Lifespan",
    "9": "Incline",
    "10": "Genetics",
}


def variations() -> dict[str, list[int]]:
    """Return ScienceWorld's number of variations in the train, dev and test split of each task."""
    jvm = enter(JvmSpec(find_jar(), 60.0), 1)
    with jvm.calls():
        game = jvm.java.scienceworld.runtime.pythonapi.PythonInterface()
        found: dict[str, list[int]] = {}
        for name in game.getTaskNames():
            game.load(name, 0, "", False)
            splits = [list(ask()) for ask in (game.getVariationsTrain, game.getVariationsDev, game.getVariationsTest)]
            if [*itertools.chain(*splits)] != list(range(game.getTaskMaxVariations(name))):
                raise SystemExit(f"The splits of {name} don't follow one another; the table can't say that.")
            found[name] = list(map(len, splits))
    leave(jvm)
    return found


def turns(name: str) -> list[int]:
    """Return the number of turns of ScienceWorld's solutions in some variations of a task, without failed ones."""
    world = SciWorld(tasks=name, variations=PLAYED)
    found: list[int] = []
    for task in world.tasks:
        _, info = world.reset(options={"task": task.id})
        turn, over = 0, False
        while not over and turn < LIMIT:
            turn += 1
            *_, over, _, info = world.step(world.oracle())
        found.extend([turn] * info["success"])
        print(f"{task.id}: {turn} turns, score {info['score']}", flush=True)
    world.close()
    return found


def write(table: dict[str, dict[str, Any]]) -> None:
    """Write `tasks.json`, one task per line."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in table.items())
    content = f'{{"scienceworld": {json.dumps(jar_version())},\n"tasks": {{\n{lines}\n}}}}\n'
    (FOLDER / "tasks.json").write_text(content, encoding="utf-8")
    tasks.kinds.cache_clear()
    tasks.task_set.cache_clear()


def check() -> int:
    """Compare the variations with the table."""
    found, table = variations(), {name: list(kind.sizes) for name, kind in tasks.kinds().items()}
    for name in sorted(found.keys() | table.keys()):
        if found.get(name) != table.get(name):
            print(f"{name}: the table says {table.get(name)}, ScienceWorld {found.get(name)}.")
    print("The table holds." if found == table else "Run without --check and commit the result.")
    return int(found != table)


def main() -> int:
    """Write the table, or check it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare the variations with the table")
    if parser.parse_args().check:
        return check()
    listed = json.loads(find_jar().with_name("tasks.json").read_text(encoding="utf-8"))
    sizes = variations()
    table: dict[str, dict[str, Any]] = {
        entry["task_name"]: {
            "id": entry["task_id"],
            "category": CATEGORIES[entry["task_id"].partition("-")[0]],
            "variations": sizes[entry["task_name"]],
            "turns": 0,
        }
        for entry in listed
    }
    write(table)
    for name, entry in table.items():
        entry["turns"] = round(statistics.median(turns(name)))
    write(table)
    manifest = tasks.task_set(tasks.choose(None)).manifest()
    (FOLDER / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
