"""Tests of the corridor, the environment of the study of horizon schedules in `benchmarks/horizon`."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from agentgym_envs import EpisodeSpec, Policy, Reply, TurnContext, play_many, text_env

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
ENV = "horizon.corridor:study/Corridor-v0"


pytestmark = pytest.mark.usefixtures("benchmarks_path")


def module(name: str) -> Any:
    return importlib.import_module(f"horizon.{name}")


@pytest.fixture
def make(benchmarks_path: None) -> Any:
    return lambda **options: gymnasium.make(ENV, **options)


def walk(env: Any, task: str, *, seed: int = 0) -> int:
    """Play a task with the expert; return the number of turns."""
    _, info = env.reset(seed=seed, options={"task": task})
    turns = 0
    while not info["success"]:
        *_, info = env.step(text_env(env).oracle())
        turns += 1
    return turns


@pytest.mark.parametrize("depth_specific", [True, False])
def test_the_expert_takes_as_many_turns_as_there_are_rooms_to_pass(make: Any, depth_specific: bool) -> None:
    env = make(depth_specific=depth_specific)
    tasks = text_env(env).tasks
    for split in ("train", "dev", "test"):
        lengths = [task.difficulty for task in tasks.split(split)]
        assert set(lengths) == set(range(2, 25))
        assert len(set(Counter(task.category for task in tasks.split(split)).values())) == 1
    for task in tasks.test[:69]:
        assert walk(env, task.id) == task.difficulty == len(task.payload["signs"])
        assert task.difficulty in module("corridor").STRATA[task.category]


def test_a_wrong_door_sets_back_with_its_probability(make: Any) -> None:
    corridor = module("corridor")
    for setback in (0.0, 0.3, 1.0):
        env, back = make(setback=setback), list[bool]()
        task = next(task for task in text_env(env).tasks.train if task.difficulty == 24)
        for seed in range(300):
            env.reset(seed=seed, options={"task": task.id})
            for _ in range(3):
                env.step(text_env(env).oracle())
            wrong = next(door for door in corridor.DOORS if door != text_env(env).oracle())
            room = env.step(wrong)[4]["raw"]["room"]
            assert room in (2, 3)
            back.append(room == 2)
        assert np.mean(back) == pytest.approx(setback, abs=0.08)


def test_nothing_is_before_the_first_room(make: Any) -> None:
    env = make(setback=1.0)
    env.reset(seed=0, options={"task": "corridor/test/0-2"})
    wrong = next(door for door in module("corridor").DOORS if door != text_env(env).oracle())
    assert env.step(wrong)[4]["raw"]["room"] == 0


def test_equal_seeds_give_equal_episodes(make: Any) -> None:
    def play(seed: int) -> list[str]:
        env, seen = make(), list[str]()
        observation, _ = env.reset(seed=seed, options={"task": "corridor/dev/2-13"})
        for _ in range(40):
            seen.append(observation)
            observation, *_ = env.step("north")
        return seen

    assert play(1) == play(1)
    assert len({tuple(play(seed)) for seed in range(10)}) > 1


def test_signs_mean_other_doors_further_on_only_if_depth_specific(make: Any) -> None:
    def doors(**options: Any) -> dict[str, set[str]]:
        env, found = make(**options), dict[str, set[str]]()
        for task in text_env(env).tasks.train[:60]:
            observation, _ = env.reset(seed=0, options={"task": task.id})
            for _ in range(task.difficulty):
                door = text_env(env).oracle()
                found.setdefault(observation.split()[-1], set()).add(door)
                observation, *_ = env.step(door)
        return found

    assert all(len(found) == 1 for found in doors(depth_specific=False).values())
    assert sum(len(found) > 1 for found in doors().values()) > 4


def test_other_actions_are_invalid_and_cost_a_turn(make: Any) -> None:
    env = make()
    env.reset(seed=0, options={"task": "corridor/test/0-2"})
    observation, reward, terminated, _, info = env.step("up")
    assert (reward, terminated, info["valid"], info["raw"]["room"]) == (0.0, False, False, 0)
    assert observation == "Say north, east, south or west."
    with pytest.raises(ValueError, match="setback is a probability, from 0 to 1, not 2"):
        module("corridor").Corridor(setback=2)


@pytest.mark.long
def test_the_corridor_keeps_the_contract(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentgym_envs.checks.contract import check_text_env

    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS))  # for the processes that it starts
    check_text_env(make())


class Jumping(Policy):
    """The expert, except that it jumps in one turn."""

    needs_env = True

    def __init__(self, jump: int | None) -> None:
        self.name, self._jump, self._turn = "jumping", jump, 0

    async def reply(self, context: TurnContext) -> Reply:
        self._turn += 1
        return Reply("jump" if self._turn == self._jump else text_env(context.env).oracle())


def test_rooms_left_give_the_true_progress_of_each_turn(make: Any) -> None:
    study = importlib.import_module("credit_learning")
    env = make(setback=0.0)
    task = next(task for task in text_env(env).tasks.train if task.difficulty == 3)

    def played(jump: int | None) -> list[tuple[int | None, int | None]]:
        (episode,) = play_many(env, Jumping(jump), [EpisodeSpec(task.id)], horizon=3)
        return [(turn.before, turn.after) for turn in study.turns_of(episode)]

    assert played(None) == [(3, 2), (2, 1), (1, 0)]
    # An invalid action leads nowhere, and where the last turn of a failed episode leads is unknown.
    assert played(2) == [(3, 2), (2, 2), (2, None)]
