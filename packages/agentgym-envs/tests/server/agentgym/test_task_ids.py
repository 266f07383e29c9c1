"""AgentGym's numbers of tasks and our ids: counts and arithmetic as its servers have them, both ways."""

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


def tasks_of(world: str) -> list[str]:
    local = make(WORLDS[world])
    try:
        return [task_id for split in SPLITS for task_id in text_env(local).tasks.split(split).ids]
    finally:
        local.close()


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
def test_a_number_is_one_of_our_tasks(item: str, task: str) -> None:
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
def test_what_is_no_task_of_both_has_no_number(task: str) -> None:
    with pytest.raises(KeyError, match=r"no task|no equivalent|isn't in our task set|no fixed number"):
        item_id(task)


@pytest.mark.parametrize(
    "item",
    [
        "babyai_15",  # a level that is in no task set
        "babyai_20480",  # a seed beyond our training split
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
def test_what_we_do_not_have_is_refused(item: str) -> None:
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
def test_what_agentgym_does_not_have_is_refused(task: str) -> None:
    with pytest.raises(KeyError, match="AgentGym"):
        item_id(task)


def test_babyai_has_40_levels_of_which_we_have_39() -> None:
    assert len(set(LEVELS)) == 40
    assert set(LEVELS) - set(all_levels()) == {"OpenDoorsOrderN4Debug"}


@given(st.integers(0, 40 * 512 - 1))
def test_babyais_levels_take_turns(number: int) -> None:
    seed, place = divmod(number, 40)
    level = all_levels().get(LEVELS[place])
    if level is None or level.train[seed] is None:
        with pytest.raises(KeyError, match=f"seed {seed} of {LEVELS[place]}"):
            task_id(f"babyai_{number}")
    else:
        task = task_set((LEVELS[place],))[task_id(f"babyai_{number}")]
        assert task.payload == {"level": LEVELS[place], "seed": seed}
        assert item_id(task.id) == f"babyai_{number}"


@pytest.mark.parametrize("number", [1, 203, 322, 443])
def test_a_number_of_babyai_has_the_mission_of_its_level_and_seed(number: int) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        there = gymnasium.make(f"BabyAI-{LEVELS[number % 40]}-v0", disable_env_checker=True)
        there.reset(seed=number // 40)
    here = make(WORLDS["babyai"])
    observation, _ = here.reset(options={"task": task_id(f"babyai_{number}")})
    mission = there.get_wrapper_attr("mission")
    assert observation.startswith(f"Your goal: {mission}\n")


def test_sciworld_has_4639_of_which_each_is_ours() -> None:
    ours = {task_id(f"sciworld_{number}") for number in range(4_639)}
    assert len(ours) == 4_639
    assert {item_id(task) for task in ours} == {f"sciworld_{number}" for number in range(4_639)}


@given(st.sampled_from(list(PUBLISHED)), st.data())
def test_searchqa_counts_its_sets_through(name: str, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, PUBLISHED[name].test - 1))
    task = f"searchqa/test/{name}/{position}"
    assert task_id(item_id(task)) == task


@pytest.mark.parametrize("world", ["babyai", "textcraft"])
def test_each_of_our_tasks_has_its_own_number_or_none(world: str) -> None:
    items: set[str] = set()
    for task in (tasks := tasks_of(world)):
        try:
            items.add(item := item_id(task))
        except KeyError:
            continue
        assert task_id(item) == task
    assert len(items) == {"babyai": 19_832, "textcraft": 0}[world]
    assert len(tasks) > len(items)
