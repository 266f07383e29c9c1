"""Tests of SciWorld's task sets, options and AgentGym ids."""

from __future__ import annotations

from collections import Counter

import pytest
from agentgym_envs.core.tasks import SPLITS
from agentgym_envs.worlds.sciworld.agentgym_ids import from_agentgym
from agentgym_envs.worlds.sciworld.env import SciWorld
from agentgym_envs.worlds.sciworld.tasks import AGENTGYM, choose, kinds, simplify, task_set

ENV = SciWorld()
PAPER_CATEGORIES = {"Measure", "Test-Cond", "Find", "Chem", "Lifespan"}


def test_splits_have_all_of_scienceworlds_variations() -> None:
    assert len(kinds()) == 30
    assert {split: len(ENV.tasks.split(split)) for split in SPLITS} == {"train": 3592, "dev": 1796, "test": 1819}
    assert len({task.id for task in ENV.tasks}) == 7207


def test_variations_are_consecutive_across_splits() -> None:
    for name in kinds():
        tasks = task_set((name,))
        numbers = [task.payload["variation"] for split in SPLITS for task in tasks.split(split)]
        assert numbers == list(range(len(tasks)))


def test_task_order_interleaves_task_kinds() -> None:
    for split in SPLITS:
        first = ENV.tasks.split(split)[:30]
        assert [task.payload["task"] for task in first] == list(kinds())


def test_tasks_have_payload_category_and_difficulty() -> None:
    task = ENV.tasks["sciworld/test/boil/21"]
    assert task.payload == {"task": "boil", "variation": 21}
    assert (task.env, task.split, task.category) == ("agentgym/SciWorld-v0", "test", "Test-Cond")
    assert all(task.difficulty >= 1 for task in ENV.tasks)
    assert {kinds()[name].category for name in choose(AGENTGYM)} == PAPER_CATEGORIES
    assert not {kind.category for name, kind in kinds().items() if name not in choose(AGENTGYM)} & PAPER_CATEGORIES


def test_tasks_are_chosen_by_name_number_or_set() -> None:
    assert choose(["1-2", "boil"]) == choose(["boil", "melt"]) == ("boil", "melt")
    assert choose("10-1") == ("mendelian-genetics-known-plant",)
    assert choose([AGENTGYM, "grow-plant"]) == (*choose(None)[:16], *choose(None)[17:25])
    assert len(SciWorld(tasks="agentgym").tasks) == 4639


def test_unknown_task_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"no task 'boyl'.*Did you mean boil\?"):
        SciWorld(tasks="boyl")
    with pytest.raises(ValueError, match="tasks is empty"):
        SciWorld(tasks=[])
    with pytest.raises(KeyError, match=r"no task 'sciworld/test/boil/3'.*Did you mean sciworld/t"):
        ENV.reset(options={"task": "sciworld/test/boil/3"})


def test_the_number_of_variations_can_be_limited() -> None:
    tasks = SciWorld(variations=2).tasks
    assert {split: len(tasks.split(split)) for split in SPLITS} == dict.fromkeys(SPLITS, 60)
    assert set(Counter(task.payload["task"] for task in tasks.test).values()) == {2}
    assert set(tasks.test.ids) <= set(ENV.tasks.test.ids)


def test_simplifications_are_scienceworlds_own() -> None:
    assert simplify("openDoors,teleportAction") == simplify(["openDoors", "teleportAction"])
    assert simplify(["openDoors", "teleportAction"]) == ("teleportAction", "openDoors")
    with pytest.raises(ValueError, match=r"no simplification 'openDoor'.*Did you mean openDoors"):
        SciWorld(simplifications="openDoor")


def test_no_electrical_action_excludes_electrical_tasks() -> None:
    chosen = SciWorld(simplifications="noElectricalAction").tasks
    assert not [task for task in chosen if task.payload["task"].startswith(("power", "test-cond"))]
    assert len(chosen) == 7207 - 20 - 20 - 900 - 600
    with pytest.raises(ValueError, match="can't be solved with noElectricalAction"):
        SciWorld(tasks="3-1", simplifications="noElectricalAction")


def test_nonpositive_options_are_rejected() -> None:
    for options in ({"jvms": 0}, {"patience": 0.0}, {"variations": 0}):
        with pytest.raises(ValueError, match=r"must be (a )?positive"):
            SciWorld(**options)


@pytest.mark.parametrize(
    ("item", "task"),
    [
        ("sciworld_0", "sciworld/train/boil/0"),
        ("sciworld_29", "sciworld/test/boil/29"),
        (30, "sciworld/train/melt/0"),
        ("sciworld_120", "sciworld/train/use-thermometer/0"),
        ("sciworld_660", "sciworld/train/measure-melting-point-known-substance/0"),
        ("sciworld_4638", "sciworld/test/identify-life-stages-2/9"),
    ],
)
def test_agentgym_ids_map_to_task_ids(item: str | int, task: str) -> None:
    assert from_agentgym(item) == task


def test_agentgym_ids_cover_all_of_its_tasks() -> None:
    task_ids = [from_agentgym(number) for number in range(4639)]
    assert sorted(task_ids) == sorted(task.id for task in SciWorld(tasks=AGENTGYM).tasks)
    for item in (4639, -1, "sciworld_x", "babyai_3"):
        with pytest.raises(KeyError, match="from sciworld_0 to sciworld_4638"):
            from_agentgym(item)
