"""Tests of the conversion between AgentGym's item ids and task ids: counts and arithmetic as in AgentGym's servers."""

from __future__ import annotations

import contextlib
import io

import gymnasium
import pytest
from agentgym_envs import make
from agentgym_envs.agentgym_ids import WORLDS, item_id, task_id
from agentgym_envs.core.registry import text_env
from agentgym_envs.core.tasks import SPLITS
from agentgym_envs.worlds.babyai.agentgym_ids import LEVELS
from agentgym_envs.worlds.babyai.tasks import all_levels, task_set
from agentgym_envs.worlds.searchqa.published import PUBLISHED
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick


def task_ids_of(world: str) -> list[str]:
    env = make(WORLDS[world])
    try:
        return [task_id for split in SPLITS for task_id in text_env(env).tasks.split(split).ids]
    finally:
        env.close()


@pytest.mark.parametrize(
    ("item", "task"),
    [
        ("babyai_0", "babyai/train/GoToRedBallGrey/0"),
        ("babyai_123", "babyai/train/GoToObjS4/3"),
        ("babyai_39", "babyai/train/BossLevelNoUnlock/0"),
        ("babyai_20479", "babyai/train/BossLevelNoUnlock/511"),
        ("sciworld_0", "sciworld/train/boil/0"),
        ("sciworld_4638", "sciworld/test/identify-life-stages-2/9"),
        ("searchqa_51712", "searchqa/test/bamboogle/124"),
        ("searchqa_51713", "searchqa/train/nq/0"),
        ("webarena_763", "webarena/webarena/763"),
    ],
)
def test_item_ids_and_task_ids_are_converted(item: str, task: str) -> None:
    assert task_id(item) == task
    assert item_id(task) == item


@pytest.mark.parametrize(
    "task",
    [
        "babyai/train",
        "babyai/train/GoToDoor/x",
        "babyai/train/GoToDoor/999999",
        "babyai/test/GoToDoor/1000000",
        "sciworld/test",
        "sciworld/test/find-animal/99999",
        "sciworld/train/find-animal/299",  # of another split
        "webarena/webarena/abc",
        "textcraft/test/flower_pot",
    ],
)
def test_task_without_an_equivalent_has_no_item_id(task: str) -> None:
    with pytest.raises(KeyError, match=r"no task|no equivalent|isn't in our task set|no fixed number"):
        item_id(task)


@pytest.mark.parametrize(
    "item",
    [
        "babyai_15",  # a level that is in no task set
        "babyai_20480",  # a seed beyond the training split
        "babyai_x",
        "sciworld_4639",
        "searchqa_221328",
        "webarena_812",
        "textcraft_0",
        "alfworld_1",
        "babyai",
        "",
    ],
)
def test_item_without_an_equivalent_has_no_task_id(item: str) -> None:
    with pytest.raises(KeyError, match="AgentGym"):
        task_id(item)


@pytest.mark.parametrize(
    "task",
    [
        "babyai/test/GoToRedBall/1000000",
        "babyai/train/GoToObj/0",
        "sciworld/train/grow-plant/0",
        "searchqa/train/triviaqa/0",
        "searchqa/test/nq/3610",
        "webarena/test/3",
        "webarena/webarena-verified/3",
        "textcraft/train/stick",
        "maze/train/1",
    ],
)
def test_task_that_agentgym_lacks_has_no_item_id(task: str) -> None:
    with pytest.raises(KeyError, match="AgentGym"):
        item_id(task)


def test_all_babyai_levels_but_one_exist() -> None:
    assert len(set(LEVELS)) == 40
    assert set(LEVELS) - set(all_levels()) == {"OpenDoorsOrderN4Debug"}


@given(st.integers(0, 40 * 512 - 1))
def test_babyai_numbers_cycle_through_the_levels(number: int) -> None:
    seed, index = divmod(number, 40)
    level = all_levels().get(LEVELS[index])
    if level is None or level.train[seed] is None:
        with pytest.raises(KeyError, match=f"seed {seed} of {LEVELS[index]}"):
            task_id(f"babyai_{number}")
    else:
        task = task_set((LEVELS[index],))[task_id(f"babyai_{number}")]
        assert task.payload == {"level": LEVELS[index], "seed": seed}
        assert item_id(task.id) == f"babyai_{number}"


@pytest.mark.parametrize("number", [1, 203, 322, 443])
def test_babyai_item_has_the_mission_of_its_level_and_seed(number: int) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        minigrid = gymnasium.make(f"BabyAI-{LEVELS[number % 40]}-v0", disable_env_checker=True)
        minigrid.reset(seed=number // 40)
    env = make(WORLDS["babyai"])
    observation, _ = env.reset(options={"task": task_id(f"babyai_{number}")})
    mission = minigrid.get_wrapper_attr("mission")
    assert observation.startswith(f"Your goal: {mission}\n")


def test_all_4639_sciworld_items_have_task_ids() -> None:
    task_ids = {task_id(f"sciworld_{number}") for number in range(4_639)}
    assert len(task_ids) == 4_639
    assert {item_id(task) for task in task_ids} == {f"sciworld_{number}" for number in range(4_639)}


@given(st.sampled_from(list(PUBLISHED)), st.data())
def test_searchqa_task_ids_survive_a_round_trip(name: str, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, PUBLISHED[name].test - 1))
    task = f"searchqa/test/{name}/{position}"
    assert task_id(item_id(task)) == task


@pytest.mark.parametrize("world", ["babyai", "textcraft"])
def test_item_ids_of_tasks_are_distinct(world: str) -> None:
    items: set[str] = set()
    for task in (tasks := task_ids_of(world)):
        try:
            items.add(item := item_id(task))
        except KeyError:
            continue
        assert task_id(item) == task
    assert len(items) == {"babyai": 19_832, "textcraft": 0}[world]
    assert len(tasks) > len(items)
