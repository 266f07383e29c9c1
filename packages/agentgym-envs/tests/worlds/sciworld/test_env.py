from __future__ import annotations

import re
import subprocess
import sys

import pytest
from agentgym_envs import make
from agentgym_envs.worlds.sciworld.env import SciWorld
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

WORDS = [
    "open",
    "focus",
    "on",
    "use",
    "connect",
    "door",
    "kitchen",
    "to",
    "the",
    "in",
    "agent",
    "0",
    "1",
    "air",
    "pour",
]
BOIL = "sciworld/train/boil/0"


def begun(task: str = BOIL, **options: object) -> SciWorld:
    world = SciWorld(**options)  # pyright: ignore[reportArgumentType]
    world.reset(seed=0, options={"task": task})
    return world


@pytest.mark.long
def test_the_scene_is_what_look_around_and_inventory_would_say() -> None:
    world = begun(simplifications="teleportAction")
    world.step("teleport to kitchen")
    world.step("pick up thermometer")
    room, bag, goals = world.scene()["parts"]
    assert (room["title"], bag["title"], goals["title"]) == ("Room", "Inventory", "Subgoals")
    assert room["text"] == world.step("look around")[0]
    assert bag["text"] == world.step("inventory")[0]
    assert "thermometer" in bag["text"]
    first, second, third, below, *rest = goals["text"].splitlines()
    assert (first, below) == ("☐ focus on substance", "Optional:")
    assert [line[0] for line in (second, third, *rest)] == ["☐"] * (2 + len(rest))
    world = begun("sciworld/train/find-animal/0")
    before = world.scene()["parts"][2]["text"]
    while (now := world.scene()["parts"][2]["text"]) == before:
        world.step(world.oracle())
    assert now.count("☑") == before.count("☑") + 1


def key(world: SciWorld, *actions: str) -> str:
    for action in actions:
        info = world.step(action)[-1]
    return info["state_key"]


def test_the_first_observation_is_the_task_and_a_look_around() -> None:
    observation, info = SciWorld().reset(options={"task": BOIL})
    task, room, *_ = observation.splitlines()
    assert task.startswith("Your task is to boil water.")
    assert room.startswith("This room is called the hallway.")
    assert info["raw"] == {"score": 0, "moves": 0}
    assert info["available_actions"] is None


def test_what_is_not_understood_is_answered_with_what_would_be() -> None:
    world = begun()
    observation, reward, terminated, _, info = world.step("fly to the moon")
    assert observation.startswith("No known action matches that input. Actions: look around,")
    assert (reward, terminated, info["valid"], info["raw"]["moves"]) == (0, False, False, 0)


def test_what_is_understood_and_refused_is_valid() -> None:
    observation, *_, info = begun().step("go to kitchen")
    assert observation == "The door is not open."
    assert info["valid"]


def test_the_instructions_know_every_action_of_scienceworld() -> None:
    world = begun()
    listed = world.step("help")[0].splitlines()[1:]
    assert len(listed) > 20
    for action in listed:
        verb = action.strip().partition(" OBJ")[0]
        assert re.search(rf"\b{verb}\b", world.instructions), verb


def test_an_ambiguous_action_is_settled_by_a_number() -> None:
    world = begun()
    before = key(world, "look around")
    question, *_, info = world.step("open door")
    assert question.startswith("Ambiguous request")
    assert info["valid"]
    assert info["state_key"] != before
    assert re.search(r"^0:\topen door between", question, re.MULTILINE)
    answer, *_, info = world.step("0")
    assert answer == "The door is now open."
    assert info["valid"]


@pytest.mark.parametrize("wrong", ["99", "9" * 4000, "", "look around", "-1"])
def test_any_other_answer_cancels_it(wrong: str) -> None:
    world = begun()
    before = key(world, "look around")
    world.step("open door")
    observation, *_, info = world.step(wrong)
    assert observation.startswith("That is not one of the numbers")
    assert not info["valid"]
    assert info["state_key"] == before
    assert world.step("look around")[0].startswith("This room is called the hallway")


def test_rewards_are_the_increments_of_scienceworlds_score() -> None:
    world = begun("sciworld/test/find-non-living-thing/225")
    scores: list[int] = []
    total, over, info = 0.0, False, {}
    while not over:
        _, reward, over, _, info = world.step(world.oracle())
        total += float(reward)
        scores.append(info["raw"]["score"])
        assert total == pytest.approx(info["score"]) == scores[-1] / 100
    assert scores == sorted(scores)
    assert len(set(scores)) > 2
    assert info["success"]
    assert scores[-1] == 100


def test_a_wrong_focus_ends_the_episode_with_nothing() -> None:
    world = begun()
    total = 0.0
    while total == 0:
        total += float(world.step(world.oracle())[1])
    _, reward, terminated, truncated, info = world.step("focus on agent")
    assert (terminated, truncated, info["success"], info["score"]) == (True, False, False, 0.0)
    assert info["raw"]["score"] == -100
    assert total > 0
    assert total + float(reward) == 0
    assert world.step("look around")[1] == 0


def test_available_actions_are_listed_on_request() -> None:
    world = begun(valid_actions=True)
    listed = world.step("look around")[-1]["available_actions"]
    assert {"open door to kitchen", "look around"} <= set(listed)
    assert world.step("open door")[-1]["available_actions"][0] == "0"


@pytest.mark.parametrize(
    ("simplification", "action", "answer"),
    [
        ("teleportAction", "teleport to kitchen", "You teleport to the kitchen."),
        ("openDoors", "go to kitchen", "You move to the kitchen."),
        ("easy", "teleport to greenhouse", "You teleport to the greenhouse."),
    ],
)
def test_simplifications_make_it_simpler(simplification: str, action: str, answer: str) -> None:
    assert begun(simplifications=simplification).step(action)[0] == answer
    assert begun().step(action)[0] != answer


def test_simplifications_reach_containers_and_circuits() -> None:
    look = {name: begun(simplifications=name) for name in ("", "openContainers", "noElectricalAction")}
    for world in look.values():
        world.step("open door to kitchen")
        world.step("go to kitchen")
    assert "The fridge door is closed" in look[""].step("look around")[0]
    assert "The fridge door is open" in look["openContainers"].step("look around")[0]
    assert "connect" not in look["noElectricalAction"].step("help")[0]
    assert "connect" in look[""].step("help")[0]


def test_the_state_key_is_that_of_what_can_be_seen() -> None:
    here, there = begun(), begun()
    start = key(here, "look around")
    assert key(there, "look around", "xyzzy", "look around") == start
    opened = key(here, "open door to kitchen")
    assert opened != start
    assert key(here, "close door to kitchen") == start
    assert key(here, "open door to kitchen") == opened == key(there, "open door to kitchen")
    assert key(begun("sciworld/train/boil/1"), "look around") != start


def test_a_state_remembers_other_rooms_as_last_seen() -> None:
    left, tidied = begun(simplifications="openDoors"), begun(simplifications="openDoors")
    key(left, "go to kitchen", "open cupboard")
    key(tidied, "go to kitchen")
    assert key(left, "go to hallway") != key(tidied, "go to hallway")


def test_the_oracle_goes_on_after_detours() -> None:
    world = begun("sciworld/test/find-non-living-thing/225")
    info = {"success": False}
    over = False
    while not over:
        world.step("xyzzy")
        world.step("inventory")
        *_, over, _, info = world.step(world.oracle())
    assert info["success"]


def test_the_oracle_follows_what_was_played_without_asking_it() -> None:
    world = begun()
    first = world.oracle()
    world.reset(options={"task": BOIL})
    world.step(first)
    assert world.oracle() != first


def test_the_oracle_is_never_stuck() -> None:
    """Not even where its way is gone: it gives up what isn't understood, and waits in the end."""
    world = begun("sciworld/test/lifespan-longest-lived/93")
    for action in ("open door to hallway", "go to hallway"):
        world.step(action)
    tried = [world.oracle()]
    while tried[-1] != "wait":
        if world.step(tried[-1])[2]:
            break
        tried.append(world.oracle())
    assert len(tried) < 30


@pytest.mark.long
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.one_of(
            st.text(max_size=200),
            st.lists(
                st.sampled_from(WORDS),
                max_size=12,
            ).map(" ".join),
            st.text(st.characters(codec=None), max_size=20),  # halves of characters among them
        ),
        max_size=6,
    )
)
def test_no_text_breaks_it(actions: list[str]) -> None:
    world = PLAYGROUND
    world.reset(options={"task": BOIL})
    for action in actions:
        observation, *_, info = world.step(action)
        assert observation
        assert observation in world.observation_space
        assert 0 <= info["score"] <= 1


PLAYGROUND = SciWorld()


def test_a_long_action_is_answered() -> None:
    world = begun()
    for action in ("connect " + "door to kitchen " * 250, "open " * 800, "9" * 4000):
        assert world.step(action)[0]


def test_the_limit_on_turns_is_gymnasiums_alone() -> None:
    env = make("agentgym/SciWorld-v0", max_episode_steps=110)
    env.reset(options={"task": BOIL})
    for turn in range(1, 111):
        _, _, terminated, truncated, info = env.step("wait1")
        assert (terminated, truncated) == (False, turn == 110)
    assert info["raw"]["moves"] >= 110
    env.close()


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_importing_the_package_imports_neither_py4j_nor_scienceworld() -> None:
    code = (
        "import sys, agentgym_envs; print([m for m in sys.modules if m.partition('.')[0] in ('py4j', 'scienceworld')])"
    )
    assert python(code) == "[]\n"


def test_making_a_world_and_asking_for_its_tasks_starts_no_jvm() -> None:
    assert (
        python(
            "import agentgym_envs\n"
            "env = agentgym_envs.make('agentgym/SciWorld-v0')\n"
            "env.unwrapped.tasks.test[0]\n"
            "from agentgym_envs.worlds.sciworld import jvm_pool; print(jvm_pool.jvms(), env.unwrapped.jvm_pid)"
        )
        == "() None\n"
    )


def test_without_scienceworld_the_command_is_named() -> None:
    said = python(
        "import importlib.util as u, agentgym_envs, gymnasium\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'scienceworld' else find(name, *rest)\n"
        "try: agentgym_envs.make('agentgym/SciWorld-v0')\n"
        "except gymnasium.error.DependencyNotInstalled as missing: print(missing)"
    )
    assert "uv sync --inexact --package agentgym-envs --extra sciworld" in said
