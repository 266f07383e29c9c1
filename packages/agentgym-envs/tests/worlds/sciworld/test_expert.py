"""Tests of SciWorld's expert and of the cache of its solutions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from agentgym_envs import WORLDS
from agentgym_envs.core.action_schema import ACT, call_for
from agentgym_envs.worlds.sciworld import expert as gold_module
from agentgym_envs.worlds.sciworld.env import SciWorld
from agentgym_envs.worlds.sciworld.expert import EDITION, gold_path, named, observant, shortened, worded
from agentgym_envs.worlds.sciworld.simulator import Setup, Simulator, jar_version
from ci_subset import subset_in_ci

LIMIT = next(world.max_episode_steps for world in WORLDS if world.id == "agentgym/SciWorld-v0")


@pytest.mark.long
def test_oracle_solves_a_variation_of_each_task() -> None:
    env = SciWorld(variations=1)
    assert len(env.tasks.test) == 30
    for task in subset_in_ci(env.tasks.test, 3):
        _, info = env.reset(options={"task": task.id})
        over = False
        for _ in range(LIMIT):
            action = env.oracle()
            assert call_for(env.functions, action).name != ACT.name
            *_, over, _, info = env.step(action)
            assert info["valid"]
            if over:
                break
        assert info["success"], task.id
    env.close()


@pytest.mark.parametrize(
    ("action", "reworded"),
    [
        ("drop black wire", "put down black wire"),
        ("pour jug in jug", "pour jug into jug"),
        (
            "pour cup containing blue paint in art studio in bowl",
            "pour cup containing blue paint in art studio into bowl",
        ),
        (
            "pour cup in art studio in cup containing red paint in table",
            "pour cup in art studio into cup containing red paint in table",
        ),
        ("pour cup in kitchen into bowl in kitchen", "pour cup in kitchen into bowl in kitchen"),
        ("pick up drop of water", "pick up drop of water"),
    ],
)
def test_solutions_use_the_wording_of_the_instructions(action: str, reworded: str) -> None:
    assert worded(action) == reworded


@pytest.mark.parametrize(
    ("action", "answer", "reworded"),
    [
        ("focus on egg giant tortoise", "You focus on the giant tortoise egg.", "focus on giant tortoise egg"),
        ("pick up flower pot 8", "You move the flower pot 8 to the inventory.", "pick up flower pot 8"),
        (
            "move egg butterfly egg in inventory to orange box",
            "You move the butterfly to the orange box.",
            "move butterfly to orange box",
        ),
        ("go to kitchen", "You move to the kitchen.", "go to kitchen"),
        ("focus on egg", "Ambiguous request: Please enter the number for the action you intended.", "focus on egg"),
    ],
)
def test_solutions_use_the_names_of_the_observations(action: str, answer: str, reworded: str) -> None:
    assert named(action, answer) == reworded


def test_solutions_look_before_they_focus() -> None:
    path = ["open door to outside", "go to outside", "focus on crocodile", "look around", "focus on dove"]
    assert observant(path) == [*path[:2], "look around", *path[2:]]
    assert observant(["focus on crocodile"]) == ["focus on crocodile"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["find-living-thing", "find-plant", "lifespan-longest-lived"])
def test_easy_solutions_waste_no_turn_and_name_only_what_they_have_seen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gold_module, "cache_folder", lambda *parts: tmp_path)
    env = SciWorld(tasks=name, simplifications="easy")
    seen, info = env.reset(options={"task": f"sciworld/train/{name}/9"})
    over = False
    while not over:
        action = env.oracle()
        assert not action.startswith("open door")
        if found := re.match(r"(focus on|pick up|move) (.+?)( to |$)", action):
            assert found[2] in seen
        observation, _, over, _, info = env.step(action)
        seen += observation
    assert info["success"]
    env.close()


@pytest.mark.long
def test_solutions_are_cached_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def folder(*parts: str) -> Path:
        path = tmp_path.joinpath(*parts)
        path.mkdir(parents=True, exist_ok=True)
        return path

    monkeypatch.setattr(gold_module, "cache_folder", folder)
    setup = Setup("lifespan-longest-lived", 93, "openDoors")
    simulator = Simulator.open(1, 60.0)
    first = gold_path(simulator, setup)
    assert first
    assert [str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.json")] == [
        f"sciworld/{jar_version()}-{EDITION}/lifespan-longest-lived/93-openDoors.json"
    ]
    (file,) = tmp_path.rglob("*.json")
    file.write_text('["open door')  # a truncated file
    assert gold_path(simulator, setup) == first
    monkeypatch.setattr(simulator, "create_sibling", None)  # computing it again would fail
    assert gold_path(simulator, setup) == first
    simulator.close()


@pytest.mark.long
def test_oracle_does_not_affect_the_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(use_oracle: bool) -> list[object]:
        env = SciWorld()
        env.reset(options={"task": "sciworld/test/find-animal/225"})
        results: list[object] = []
        for action in ("open door to kitchen", "go to kitchen", "wait", "open fridge", "look around"):
            if use_oracle:
                env.oracle()
            results.append(env.step(action))
        env.close()
        return results

    monkeypatch.setattr(gold_module, "cache_folder", lambda *parts: tmp_path)
    assert play(use_oracle=True) == play(use_oracle=False)


def test_idle_turns_are_merged_into_waits_of_ten() -> None:
    path = ["go to kitchen", *["look at stove"] * 23, *["wait1"] * 10, "wait1 ", *["use stove"] * 12]
    assert shortened(path) == [
        "go to kitchen", "wait", "wait", *["look at stove"] * 3, "wait", "wait1 ", *["use stove"] * 12
    ]  # fmt: skip
