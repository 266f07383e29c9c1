from __future__ import annotations

from pathlib import Path

import pytest
from agentgym_envs import WORLDS
from agentgym_envs.core.action_schema import ACT, call_for
from agentgym_envs.worlds.sciworld import expert as gold_module
from agentgym_envs.worlds.sciworld.env import SciWorld
from agentgym_envs.worlds.sciworld.expert import EDITION, gold_path, shortened, worded
from agentgym_envs.worlds.sciworld.simulator import Setup, Simulator, jar_version
from share import share

LIMIT = next(world.max_episode_steps for world in WORLDS if world.id == "agentgym/SciWorld-v0")


@pytest.mark.long
def test_the_oracle_solves_a_variation_of_each_task() -> None:
    world = SciWorld(variations=1)
    assert len(world.tasks.test) == 30
    for task in share(world.tasks.test, 3):
        _, info = world.reset(options={"task": task.id})
        over = False
        for _ in range(LIMIT):
            action = world.oracle()
            assert call_for(world.functions, action).name != ACT.name
            *_, over, _, info = world.step(action)
            assert info["valid"]
            if over:
                break
        assert info["success"], task.id
    world.close()


@pytest.mark.parametrize(
    ("said", "meant"),
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
def test_solutions_are_in_the_words_of_the_instructions(said: str, meant: str) -> None:
    assert worded(said) == meant


@pytest.mark.long
def test_a_solution_is_made_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def folder(*parts: str) -> Path:
        made = tmp_path.joinpath(*parts)
        made.mkdir(parents=True, exist_ok=True)
        return made

    monkeypatch.setattr(gold_module, "cache_folder", folder)
    setup = Setup("lifespan-longest-lived", 93, "openDoors")
    simulator = Simulator.open(1, 60.0)
    first = gold_path(simulator, setup)
    assert first
    assert [str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.json")] == [
        f"sciworld/{jar_version()}-{EDITION}/lifespan-longest-lived/93-openDoors.json"
    ]
    (file,) = tmp_path.rglob("*.json")
    file.write_text('["open door')  # half of what was there
    assert gold_path(simulator, setup) == first
    monkeypatch.setattr(simulator, "beside", None)  # making it again would fail
    assert gold_path(simulator, setup) == first
    simulator.close()


@pytest.mark.long
def test_making_a_solution_leaves_the_game_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(asks: bool) -> list[object]:
        world = SciWorld()
        world.reset(options={"task": "sciworld/test/find-animal/225"})
        said: list[object] = []
        for action in ("open door to kitchen", "go to kitchen", "wait", "open fridge", "look around"):
            if asks:
                world.oracle()
            said.append(world.step(action))
        world.close()
        return said

    monkeypatch.setattr(gold_module, "cache_folder", lambda *parts: tmp_path)
    assert look(asks=True) == look(asks=False)


def test_idle_turns_are_taken_ten_at_a_time() -> None:
    path = ["go to kitchen", *["look at stove"] * 23, *["wait1"] * 10, "wait1 ", *["use stove"] * 12]
    assert shortened(path) == [
        "go to kitchen", "wait", "wait", *["look at stove"] * 3, "wait", "wait1 ", *["use stove"] * 12
    ]  # fmt: skip
