"""The law for worlds, over every world of the registry. Names none of them."""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from importlib import resources
from pkgutil import resolve_name
from typing import Any

import gymnasium
import numpy as np
import pytest
from agentgym_envs import WORLDS, RegisteredWorld, text_env
from agentgym_envs.checks.contract import check_text_env
from agentgym_envs.core.registry import REMOTE
from agentgym_envs.core.tasks import Split
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from serve_process import serve_process

pytestmark = pytest.mark.usefixtures("playable")
every_world = pytest.mark.parametrize("world", WORLDS, ids=[world.id for world in WORLDS])
Transcript = list[tuple[Any, ...]]
TURNS = 6
"""After which a game is cut short where several are played."""
CHEAP = 5e-3
"""Seconds a step: of worlds that answer sooner, more is played."""


def is_dear(world: RegisteredWorld) -> bool:
    return resolve_name(world.entry_point).step_seconds > CHEAP


every_world_in_time = pytest.mark.parametrize(
    "world", [pytest.param(world, marks=[pytest.mark.long] * is_dear(world), id=world.id) for world in WORLDS]
)
"""The dear ones only in the long run."""


def name(world: RegisteredWorld) -> str:
    """The id that a process understands which has imported nothing of ours yet."""
    return f"agentgym_envs:{world.id}"


def made(world: RegisteredWorld, **options: Any) -> gymnasium.Env[str, str]:
    return gymnasium.make(name(world), **options)


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


@every_world_in_time
def test_a_world_keeps_the_contract(world: RegisteredWorld) -> None:
    env = made(world)
    check_text_env(env, tasks=1 if is_dear(world) else 5)
    env.close()


@every_world
def test_the_task_sets_are_those_of_the_manifest(world: RegisteredWorld) -> None:
    env = text_env(made(world))
    committed = resources.files(env.package).joinpath("manifest.json").read_text(encoding="utf-8")
    assert env.tasks.manifest() == json.loads(committed)


@every_world
def test_a_world_has_three_splits_that_share_no_task(world: RegisteredWorld) -> None:
    tasks = text_env(made(world)).tasks
    splits: list[Split] = ["train", "dev", "test"]
    assert all(tasks.split(split) for split in splits)
    assert len({task_id for split in splits for task_id in tasks.split(split).ids}) == len(tasks)
    for split in splits:
        some = tasks.split(split)[:: max(1, len(tasks.split(split)) // 50)]
        assert all(task.split == split and tasks[task.id] == task for task in some)


@every_world_in_time
def test_two_worlds_in_one_process_do_not_touch_each_other(world: RegisteredWorld) -> None:
    env, first, second = (made(world, max_episode_steps=TURNS) for _ in range(3))
    games = [(task, expert_game(env, task)) for task in text_env(env).tasks.train.ids[:2]]
    alone = [list(moves(env, *game)) for game in games]
    together: list[Transcript] = [[], []]
    side_by_side = [moves(other, *game) for other, game in zip((first, second), games, strict=True)]
    while any(rounds := [next(game, None) for game in side_by_side]):
        for transcript, move in zip(together, rounds, strict=True):
            transcript.extend([move] if move else [])
    assert together == alone
    for used in (env, first, second):
        used.close()


# Vectors: whoever steps the worlds together, each says what one alone says.

Maker = Callable[[RegisteredWorld, int, AutoresetMode], VectorEnv[Any, Any, Any]]
Game = tuple[str, list[str], Transcript]


def ours(world: RegisteredWorld, count: int, mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
    return gymnasium.make_vec(name(world), num_envs=count, max_episode_steps=TURNS, autoreset_mode=mode)


def gymnasiums(kind: Callable[..., VectorEnv[Any, Any, Any]], **options: Any) -> Maker:
    def make(world: RegisteredWorld, count: int, mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
        one = functools.partial(gymnasium.make, name(world), max_episode_steps=TURNS)
        return kind([one] * count, autoreset_mode=mode, **options)

    return make


VECTORS: dict[str, Maker] = {
    "ours": ours,
    "sync": gymnasiums(SyncVectorEnv),
    "async": gymnasiums(AsyncVectorEnv),
    "async without shared memory": gymnasiums(AsyncVectorEnv, shared_memory=False),
    "async spawned": gymnasiums(AsyncVectorEnv, context="spawn"),
}


@pytest.fixture(scope="module")
def game_alone() -> Iterator[Callable[[RegisteredWorld], Game]]:
    """A task, the actions of a game, and what a single world says to it and to a `reset` after the end. The worlds stay
    open, so that the vectors share what is dear to start, or fork while it is there."""
    with ExitStack() as worlds:

        @functools.cache
        def play(world: RegisteredWorld) -> Game:
            env = worlds.enter_context(closing(made(world, max_episode_steps=TURNS)))
            task = text_env(env).tasks.test.ids[0]
            actions = expert_game(env, task)
            return task, actions, [*moves(env, task, actions), env.reset()]

        yield play


def part(infos: dict[str, Any], number: int) -> dict[str, Any]:
    """The info of one world out of those of a vector."""
    return {
        key: part(value, number) if isinstance(value, dict) else value[number]
        for key, value in infos.items()
        if not key.startswith("_") and infos[f"_{key}"][number]
    }


def game_in(vec: VectorEnv[Any, Any, Any], task: str, actions: list[str]) -> Iterator[Transcript]:
    """What each of the worlds of a vector says to it."""

    def each(observations: Any, *rest: Any) -> list[tuple[Any, ...]]:
        *rewards_and_ends, infos = rest
        return [(observations[i], *(column[i] for column in rewards_and_ends), part(infos, i)) for i in range(count)]

    count = vec.num_envs
    rounds = [each(*vec.reset(seed=[5] * count, options={"task": task}))]
    rounds.extend(each(*vec.step((action,) * count)) for action in actions)
    match vec.metadata["autoreset_mode"]:
        case AutoresetMode.NEXT_STEP:
            rounds.append([(first, info) for first, *_, info in each(*vec.step(("to the winds",) * count))])
        case AutoresetMode.SAME_STEP:
            last = rounds.pop()
            infos = [info for *_, info in last]
            finals = [(info.pop("final_obs"), info.pop("final_info")) for info in infos]
            rounds.append([(end, *ends, info) for (_, *ends, _), (end, info) in zip(last, finals, strict=True)])
            rounds.append([(first, info) for first, *_, info in last])
        case _:
            rounds.append(each(*vec.reset(options={"reset_mask": np.ones(count, np.bool_)})))
    return map(list, zip(*rounds, strict=True))


NEXT, SAME, DISABLED = AutoresetMode
CASES = [("ours", SAME, 2), ("async", NEXT, 1)]
SPAWNED = ("async spawned", NEXT, 1)
MORE_CASES = [
    ("ours", NEXT, 2),
    ("ours", DISABLED, 2),
    ("sync", NEXT, 2),
    ("sync", SAME, 2),
    ("sync", DISABLED, 2),
    ("async", SAME, 2),
    ("async", DISABLED, 2),
    ("async without shared memory", DISABLED, 1),
]


def _cases() -> Iterator[Any]:
    """Of dear worlds only our vector, and one that begins in another process: a vector resets them all alike."""
    for world in WORLDS:
        for case in (CASES[0], SPAWNED, *([] if is_dear(world) else [*CASES[1:], *MORE_CASES])):
            everyday = case in CASES and not is_dear(world)
            name = "-".join(map(str, (*case, world.id)))
            yield pytest.param(*case, world, marks=[] if everyday else [pytest.mark.long], id=name)


# Of forks, from Python 3.12 on.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(("vector", "mode", "count", "world"), [*_cases()])
def test_a_vector_of_worlds_plays_what_one_plays(
    vector: str, mode: AutoresetMode, count: int, world: RegisteredWorld, game_alone: Callable[[RegisteredWorld], Game]
) -> None:
    task, actions, alone = game_alone(world)
    vec = VECTORS[vector](world, count, mode)
    assert list(game_in(vec, task, actions)) == [alone] * count
    vec.close()


@every_world
def test_what_a_world_says_can_be_pickled(world: RegisteredWorld) -> None:
    env = made(world)
    task = text_env(env).tasks.train[0]
    said = list(moves(env, task.id, ["xyzzy"]))
    assert pickle.loads(pickle.dumps((task, said))) == (task, said)


@every_world
def test_a_world_may_be_closed_twice_and_before_it_was_used(world: RegisteredWorld) -> None:
    unused, used = made(world), made(world)
    used.reset()
    for env in (unused, used, unused, used):
        env.close()


# Over HTTP: the server is a process of its own, as `serve` starts it.

FEW = 1_000
"""So many tasks are fetched in no time."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve_process() as server:
        yield server.url
        server.process.terminate()  # it closes its worlds
        server.process.wait()


def far(world: RegisteredWorld, url: str, **options: Any) -> gymnasium.Env[str, str]:
    return gymnasium.make(f"agentgym_envs:{REMOTE}", url=url, env=world.id, **options)


def told(env: gymnasium.Env[str, str], task: str, actions: list[str]) -> Iterator[tuple[Any, ...]]:
    """What the world says to the actions, how the oracle sees each state, and how it is drawn."""
    world = text_env(env)
    yield env.reset(seed=5, options={"task": task})
    for action in actions:
        yield world.oracle(), world.oracle_thought(), world.oracle_plan(), world.scene()
        yield env.step(action)


def check_far(world: RegisteredWorld, url: str) -> None:
    """A world on a server says to the byte what it says here."""
    with closing(far(world, url, horizon=TURNS)) as there, closing(made(world, max_episode_steps=TURNS)) as here:
        for split in ("train", "test"):
            assert there.reset(seed=6, options={"split": split}) == here.reset(seed=6, options={"split": split})
        task = text_env(here).tasks.test.ids[1]
        actions = expert_game(there, task)
        assert list(told(there, task, actions)) == list(told(here, task, actions))


def check_far_manifest(world: RegisteredWorld, url: str) -> None:
    committed = resources.files(text_env(made(world)).package).joinpath("manifest.json").read_text(encoding="utf-8")
    with closing(far(world, url)) as there:
        assert text_env(there).tasks.manifest() == json.loads(committed)


@pytest.mark.long
def test_cheap_worlds_keep_the_contract_over_http(url: str) -> None:
    """What the contract asks of the connection, it asks of any world; the others are compared to the byte."""
    cheap = [world for world in WORLDS if text_env(made(world)).step_seconds < CHEAP / 10]
    assert cheap
    for world in cheap:
        with closing(far(world, url)) as there:
            check_text_env(there, tasks=1, processes=False)
        check_far(world, url)
        if len(text_env(made(world)).tasks) < FEW:
            check_far_manifest(world, url)


@pytest.mark.long
@every_world
def test_a_world_says_the_same_over_http(world: RegisteredWorld, url: str) -> None:
    check_far(world, url)


@pytest.mark.long
@every_world
def test_the_task_sets_over_http_are_those_of_the_manifest(world: RegisteredWorld, url: str) -> None:
    check_far_manifest(world, url)
