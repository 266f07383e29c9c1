"""Tests of `SciWorld`: actions, rewards, options, state keys, the oracle and imports."""

from __future__ import annotations

import math
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


def start_env(task: str = BOIL, **options: object) -> SciWorld:
    env = SciWorld(**options)  # pyright: ignore[reportArgumentType]
    env.reset(seed=0, options={"task": task})
    return env


def test_a_long_list_of_meanings_is_cut_and_can_be_answered() -> None:
    env = start_env(simplifications="teleportAction")
    env.step("teleport to kitchen")
    question = env.step("connect terminal 1 to terminal 2")[0]
    assert question in env.observation_space
    *lines, end = question.splitlines()
    assert [line.partition(":")[0] for line in lines[1:]] == [str(number) for number in range(len(lines) - 1)]
    assert len(lines) > 200
    assert end.startswith("[The rest of this list is left out.")
    assert env.step("0")[-1]["valid"]


@pytest.mark.long
def test_scene_matches_look_around_inventory_and_goals() -> None:
    env = start_env(simplifications="teleportAction")
    env.step("teleport to kitchen")
    env.step("pick up thermometer")
    room, inventory, goals = env.scene()["parts"]
    assert (room["title"], inventory["title"], goals["title"]) == ("Room", "Inventory", "Subgoals")
    assert room["text"] == env.step("look around")[0]
    assert inventory["text"] == env.step("inventory")[0]
    assert "thermometer" in inventory["text"]
    first, second, third, heading, *rest = goals["text"].splitlines()
    assert (first, heading) == ("☐ focus on substance", "Optional:")
    assert [line[0] for line in (second, third, *rest)] == ["☐"] * (2 + len(rest))
    env = start_env("sciworld/train/find-animal/0")
    before = env.scene()["parts"][2]["text"]
    while (now := env.scene()["parts"][2]["text"]) == before:
        env.step(env.oracle())
    assert now.count("☑") == before.count("☑") + 1


def state_key(env: SciWorld, *actions: str) -> str:
    for action in actions:
        info = env.step(action)[-1]
    return info["state_key"]


def test_first_observation_has_the_task_and_a_look_around() -> None:
    observation, info = SciWorld().reset(options={"task": BOIL})
    task, room, *_ = observation.splitlines()
    assert task.startswith("Your task is to boil water.")
    assert room.startswith("This room is called the hallway.")
    assert info["raw"] == {"score": 0, "moves": 0}
    assert info["available_actions"] is None


def test_unknown_action_lists_the_known_actions() -> None:
    env = start_env()
    observation, reward, terminated, _, info = env.step("fly to the moon")
    assert observation.startswith("No known action matches that input. Actions: look around,")
    assert (reward, terminated, info["valid"], info["raw"]["moves"]) == (0, False, False, 0)


def test_understood_but_refused_action_is_valid() -> None:
    observation, *_, info = start_env().step("go to kitchen")
    assert observation == "The door is not open."
    assert info["valid"]


def test_instructions_list_every_scienceworld_action() -> None:
    env = start_env()
    actions = env.step("help")[0].splitlines()[1:]
    assert len(actions) > 20
    for action in actions:
        verb = action.strip().partition(" OBJ")[0]
        assert re.search(rf"\b{verb}\b", env.instructions), verb


def test_number_resolves_an_ambiguous_action() -> None:
    env = start_env()
    before = state_key(env, "look around")
    question, *_, info = env.step("open door")
    assert question.startswith("Ambiguous request")
    assert info["valid"]
    assert info["state_key"] != before
    assert re.search(r"^0:\topen door between", question, re.MULTILINE)
    answer, *_, info = env.step("0")
    assert answer == "The door is now open."
    assert info["valid"]


@pytest.mark.parametrize("wrong", ["99", "9" * 4000, "", "look around", "-1"])
def test_other_replies_cancel_an_ambiguous_action(wrong: str) -> None:
    env = start_env()
    before = state_key(env, "look around")
    env.step("open door")
    observation, *_, info = env.step(wrong)
    assert observation.startswith("That is not one of the numbers")
    assert not info["valid"]
    assert info["state_key"] == before
    assert env.step("look around")[0].startswith("This room is called the hallway")


def test_rewards_are_increments_of_scienceworlds_score() -> None:
    env = start_env("sciworld/test/find-non-living-thing/225")
    scores: list[int] = []
    total, over, info = 0.0, False, {}
    while not over:
        _, reward, over, _, info = env.step(env.oracle())
        total += float(reward)
        scores.append(info["raw"]["score"])
        assert total == pytest.approx(info["score"]) == scores[-1] / 100
    assert scores == sorted(scores)
    assert len(set(scores)) > 2
    assert info["success"]
    assert scores[-1] == 100


def test_wrong_focus_ends_the_episode_with_score_0() -> None:
    env = start_env()
    total = 0.0
    while total == 0:
        total += float(env.step(env.oracle())[1])
    _, reward, terminated, truncated, info = env.step("focus on agent")
    assert (terminated, truncated, info["success"], info["score"]) == (True, False, False, 0.0)
    assert info["raw"]["score"] == -100
    assert total > 0
    assert total + float(reward) == 0
    assert env.step("look around")[1] == 0


def test_available_actions_are_listed_on_request() -> None:
    env = start_env(valid_actions=True)
    assert env.lists_actions
    assert not SciWorld().lists_actions
    assert SciWorld.actions_option == "valid_actions=True"
    actions = env.step("look around")[-1]["available_actions"]
    assert {"open door to kitchen", "look around"} <= set(actions)
    assert env.step("open door")[-1]["available_actions"][0] == "0"


@pytest.mark.parametrize(
    ("simplification", "action", "answer"),
    [
        ("teleportAction", "teleport to kitchen", "You teleport to the kitchen."),
        ("openDoors", "go to kitchen", "You move to the kitchen."),
        ("easy", "teleport to greenhouse", "You teleport to the greenhouse."),
    ],
)
def test_simplifications_allow_easier_actions(simplification: str, action: str, answer: str) -> None:
    assert start_env(simplifications=simplification).step(action)[0] == answer
    assert start_env().step(action)[0] != answer


def test_simplifications_affect_containers_and_circuits() -> None:
    envs = {name: start_env(simplifications=name) for name in ("", "openContainers", "noElectricalAction")}
    for env in envs.values():
        env.step("open door to kitchen")
        env.step("go to kitchen")
    assert "The fridge door is closed" in envs[""].step("look around")[0]
    assert "The fridge door is open" in envs["openContainers"].step("look around")[0]
    assert "connect" not in envs["noElectricalAction"].step("help")[0]
    assert "connect" in envs[""].step("help")[0]


def test_state_key_depends_on_the_visible_state() -> None:
    first, second = start_env(), start_env()
    initial = state_key(first, "look around")
    assert state_key(second, "look around", "xyzzy", "look around") == initial
    opened = state_key(first, "open door to kitchen")
    assert opened != initial
    assert state_key(first, "close door to kitchen") == initial
    assert state_key(first, "open door to kitchen") == opened == state_key(second, "open door to kitchen")
    assert state_key(start_env("sciworld/train/boil/1"), "look around") != initial


def test_state_key_includes_other_rooms_as_last_seen() -> None:
    opened, untouched = start_env(simplifications="openDoors"), start_env(simplifications="openDoors")
    state_key(opened, "go to kitchen", "open cupboard")
    state_key(untouched, "go to kitchen")
    assert state_key(opened, "go to hallway") != state_key(untouched, "go to hallway")


def test_oracle_succeeds_despite_detours() -> None:
    env = start_env("sciworld/test/find-non-living-thing/225")
    info = {"success": False}
    over = False
    while not over:
        env.step("xyzzy")
        env.step("inventory")
        *_, over, _, info = env.step(env.oracle())
    assert info["success"]


def test_oracle_follows_actions_taken_without_it() -> None:
    env = start_env()
    first = env.oracle()
    env.reset(options={"task": BOIL})
    env.step(first)
    assert env.oracle() != first


def test_oracle_never_gets_stuck() -> None:
    """If its path is blocked, it skips invalid actions, and finally waits."""
    env = start_env("sciworld/test/lifespan-longest-lived/93")
    for action in ("open door to hallway", "go to hallway"):
        env.step(action)
    tried = [env.oracle()]
    while tried[-1] != "wait":
        if env.step(tried[-1])[2]:
            break
        tried.append(env.oracle())
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
            st.text(st.characters(codec=None), max_size=20),  # includes lone surrogates
        ),
        max_size=6,
    )
)
def test_any_text_gets_an_observation(actions: list[str]) -> None:
    env = ENV
    env.reset(options={"task": BOIL})
    for action in actions:
        observation, *_, info = env.step(action)
        assert observation
        assert observation in env.observation_space
        assert 0 <= info["score"] <= 1


ENV = SciWorld()


def test_long_actions_get_an_observation() -> None:
    env = start_env()
    for action in ("connect " + "door to kitchen " * 250, "open " * 800, "9" * 4000):
        assert env.step(action)[0]


def test_turns_are_limited_only_by_max_episode_steps() -> None:
    env = make("agentgym/SciWorld-v0", max_episode_steps=110)
    env.reset(options={"task": BOIL})
    for turn in range(1, 111):
        _, _, terminated, truncated, info = env.step("wait1")
        assert (terminated, truncated) == (False, turn == 110)
    assert info["raw"]["moves"] >= 110
    env.close()


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_package_import_does_not_import_py4j_or_scienceworld() -> None:
    code = (
        "import sys, agentgym_envs; print([m for m in sys.modules if m.partition('.')[0] in ('py4j', 'scienceworld')])"
    )
    assert run_python(code) == "[]\n"


@pytest.mark.parametrize(
    ("name", "value"), [("jvms", 1.5), ("jvms", "2"), ("jvms", 0), ("patience", math.nan), ("patience", "1")]
)
def test_options_that_are_no_positive_numbers_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a positive"):
        make("agentgym/SciWorld-v0", **{name: value})


def test_listing_tasks_starts_no_jvm() -> None:
    assert (
        run_python(
            "import agentgym_envs\n"
            "env = agentgym_envs.make('agentgym/SciWorld-v0')\n"
            "env.unwrapped.tasks.test[0]\n"
            "from agentgym_envs.worlds.sciworld import jvm_pool; print(jvm_pool.jvms(), env.unwrapped.jvm_pid)"
        )
        == "() None\n"
    )


def test_missing_scienceworld_names_the_install_command() -> None:
    output = run_python(
        "import importlib.util as u, agentgym_envs, gymnasium\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'scienceworld' else find(name, *rest)\n"
        "try: agentgym_envs.make('agentgym/SciWorld-v0')\n"
        "except gymnasium.error.DependencyNotInstalled as missing: print(missing)"
    )
    assert "uv sync --inexact --package agentgym-envs --extra sciworld" in output
