"""The law for worlds, over every world of the registry. Names none of them."""

from __future__ import annotations

import functools
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from typing import Any

import gymnasium
import pytest
from agentgym_envs import WORLDS, World, text_env
from agentgym_envs.checks import check_text_env
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

every_world = pytest.mark.parametrize("world", WORLDS, ids=[world.id for world in WORLDS])
Transcript = list[tuple[Any, ...]]
CHEAP = 5e-3
"""Seconds a step: of worlds that answer sooner, more tasks are played."""


def name(world: World) -> str:
    """The id that a process understands which has imported nothing of ours yet."""
    return f"agentgym_envs:{world.id}"


def made(world: World) -> gymnasium.Env[str, str]:
    return gymnasium.make(name(world))


def expert_game(env: gymnasium.Env[str, str], task: str) -> list[str]:
    """One word of nonsense, and then the expert's way to the end."""
    env.reset(seed=5, options={"task": task})
    actions = ["xyzzy"]
    over = bool(env.step("xyzzy")[2])
    while not over:
        actions.append(text_env(env).oracle())
        _, _, terminated, truncated, _ = env.step(actions[-1])
        over = terminated or truncated
    return actions


def moves(env: gymnasium.Env[str, str], task: str, actions: list[str]) -> Iterator[tuple[Any, ...]]:
    """What the world says to the actions, one by one."""
    yield env.reset(seed=5, options={"task": task})
    for action in actions:
        yield env.step(action)


@every_world
def test_a_world_keeps_the_contract(world: World) -> None:
    env = made(world)
    check_text_env(env, tasks=1 if text_env(env).step_seconds > CHEAP else 5)
    env.close()


@every_world
def test_the_task_sets_are_those_of_the_manifest(world: World) -> None:
    env = text_env(made(world))
    committed = resources.files(env.package).joinpath("manifest.json").read_text(encoding="utf-8")
    assert env.tasks.manifest() == json.loads(committed)


_PLAY = """
import sys, gymnasium
env = gymnasium.make(f"agentgym_envs:{sys.argv[1]}")
for split in ("train", "test"):
    task = env.unwrapped.tasks.split(split)[1]
    print(task, env.reset(seed=5, options={"task": task.id}))
    for _ in range(3):
        print(env.step(env.unwrapped.oracle()))
    print(env.reset(seed=6, options={"split": split}))
"""


@every_world
def test_the_hash_seed_changes_nothing(world: World) -> None:
    def printed(hash_seed: str) -> str:
        surroundings = os.environ | {"PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", _PLAY, world.id]
        return subprocess.run(command, env=surroundings, check=True, capture_output=True, encoding="utf-8").stdout

    first = printed("1")
    assert len(first) > 1000
    assert first == printed("2")


@every_world
def test_two_worlds_in_one_process_do_not_touch_each_other(world: World) -> None:
    env = made(world)
    games = [(task, expert_game(env, task)) for task in env.unwrapped.tasks.train.ids[:2]]  # pyright: ignore[reportAttributeAccessIssue]
    alone = [list(moves(env, *game)) for game in games]
    together: list[Transcript] = [[], []]
    side_by_side = [moves(made(world), *game) for game in games]
    while any(rounds := [next(game, None) for game in side_by_side]):
        for transcript, move in zip(together, rounds, strict=True):
            transcript.extend([move] if move else [])
    assert together == alone


VECTORS = {
    "sync": SyncVectorEnv,
    "async": functools.partial(AsyncVectorEnv, context="spawn"),
    "async without shared memory": functools.partial(AsyncVectorEnv, context="spawn", shared_memory=False),
}


@every_world
@pytest.mark.parametrize("vector", VECTORS.values(), ids=list(VECTORS))
def test_a_vector_of_worlds_plays_what_one_plays(world: World, vector: Any) -> None:
    env = made(world)
    task = text_env(env).tasks.test.ids[0]
    actions = expert_game(env, task)
    alone = list(moves(env, task, actions))
    vec: VectorEnv[Any, Any, Any] = vector([functools.partial(gymnasium.make, name(world))] * 2)
    observations, infos = vec.reset(seed=[5, 5], options={"task": task})
    seen: list[list[tuple[Any, ...]]] = [[(observations[i], infos["state_key"][i])] for i in range(2)]
    for action in actions:
        observations, rewards, terminated, truncated, infos = vec.step((action, action))
        for i in range(2):
            seen[i].append((observations[i], infos["state_key"][i], rewards[i], terminated[i], truncated[i]))
    vec.close()
    (observation, info), *rest = alone
    expected = [(observation, info["state_key"]), *((o, i["state_key"], r, te, tr) for o, r, te, tr, i in rest)]
    assert seen == [expected, expected]


@every_world
def test_what_a_world_says_can_be_pickled(world: World) -> None:
    env = made(world)
    task = text_env(env).tasks.train[0]
    said = list(moves(env, task.id, ["xyzzy"]))
    assert pickle.loads(pickle.dumps((task, said))) == (task, said)


@every_world
def test_a_world_may_be_closed_twice_and_before_it_was_used(world: World) -> None:
    unused, used = made(world), made(world)
    used.reset()
    for env in (unused, used, unused, used):
        env.close()
