"""Tests of the environment contract, for every registered environment."""

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
from agentgym_envs import WORLDS, RegisteredWorld, TextEnv, text_env
from agentgym_envs.checks.contract import check_text_env
from agentgym_envs.core.registration import REMOTE
from agentgym_envs.core.tasks import Split
from gymnasium.error import ResetNeeded
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from serve_process import serve_process

pytestmark = pytest.mark.usefixtures("playable")
every_world = pytest.mark.parametrize("world", WORLDS, ids=[world.id for world in WORLDS])
Transcript = list[tuple[Any, ...]]
MAX_TURNS = 6
"""The limit on the turns of episodes that are played several times."""
FAST_STEP_SECONDS = 5e-3
"""Seconds per step; faster environments are tested more."""


def is_slow(world: RegisteredWorld) -> bool:
    return resolve_name(world.entry_point).step_seconds > FAST_STEP_SECONDS


every_world_long_if_slow = pytest.mark.parametrize(
    "world", [pytest.param(world, marks=[pytest.mark.long] * is_slow(world), id=world.id) for world in WORLDS]
)
"""Slow environments only run with `-m long`."""


def qualified_id(world: RegisteredWorld) -> str:
    """Return an id that also works in a process that hasn't imported `agentgym_envs` yet."""
    return f"agentgym_envs:{world.id}"


def make_env(world: RegisteredWorld, **options: Any) -> gymnasium.Env[str, str]:
    return gymnasium.make(qualified_id(world), **options)


def expert_actions(env: gymnasium.Env[str, str], task: str) -> list[str]:
    """Return an invalid action, followed by the expert's actions to the end of the episode."""
    env.reset(seed=5, options={"task": task})
    actions = ["xyzzy"]
    over = bool(env.step("xyzzy")[2])
    while not over:
        actions.append(text_env(env).oracle())
        _, _, terminated, truncated, _ = env.step(actions[-1])
        over = terminated or truncated
    return actions


def replay(env: gymnasium.Env[str, str], task: str, actions: list[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the results of `reset` and of a step per action."""
    yield env.reset(seed=5, options={"task": task})
    for action in actions:
        yield env.step(action)


@every_world_long_if_slow
def test_environment_keeps_the_contract(world: RegisteredWorld) -> None:
    env = make_env(world)
    check_text_env(env, tasks=1 if is_slow(world) else 5)
    env.close()


@every_world
def test_task_sets_match_the_manifest(world: RegisteredWorld) -> None:
    env = text_env(make_env(world))
    committed = resources.files(env.package).joinpath("manifest.json").read_text(encoding="utf-8")
    assert env.tasks.manifest() == json.loads(committed)


@every_world
def test_splits_are_nonempty_and_disjoint(world: RegisteredWorld) -> None:
    tasks = text_env(make_env(world)).tasks
    splits: list[Split] = ["train", "dev", "test"]
    assert all(tasks.split(split) for split in splits)
    assert len({task_id for split in splits for task_id in tasks.split(split).ids}) == len(tasks)
    for split in splits:
        sample = tasks.split(split)[:: max(1, len(tasks.split(split)) // 50)]
        assert all(task.split == split and tasks[task.id] == task for task in sample)


@every_world_long_if_slow
def test_environments_in_one_process_are_independent(world: RegisteredWorld) -> None:
    env, first, second = (make_env(world, max_episode_steps=MAX_TURNS) for _ in range(3))
    episodes = [(task, expert_actions(env, task)) for task in text_env(env).tasks.train.ids[:2]]
    separate = [list(replay(env, *episode)) for episode in episodes]
    interleaved: list[Transcript] = [[], []]
    replays = [replay(other, *episode) for other, episode in zip((first, second), episodes, strict=True)]
    while any(results := [next(steps, None) for steps in replays]):
        for transcript, result in zip(interleaved, results, strict=True):
            transcript.extend([result] if result else [])
    assert interleaved == separate
    for opened in (env, first, second):
        opened.close()


@every_world
def test_questions_before_the_first_reset_raise(world: RegisteredWorld) -> None:
    env = text_env(make_env(world))
    for ask in (env.oracle, env.oracle_thought, env.oracle_plan, *[env.scene] * (type(env).scene != TextEnv.scene)):
        with pytest.raises(ResetNeeded, match="call reset"):
            ask()


# Vector environments: each sub-environment returns what a single environment returns.

Maker = Callable[[RegisteredWorld, int, AutoresetMode], VectorEnv[Any, Any, Any]]
Reference = tuple[str, list[str], Transcript]


def our_vector(world: RegisteredWorld, count: int, mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
    return gymnasium.make_vec(qualified_id(world), num_envs=count, max_episode_steps=MAX_TURNS, autoreset_mode=mode)


def gymnasium_vector(kind: Callable[..., VectorEnv[Any, Any, Any]], **options: Any) -> Maker:
    def make(world: RegisteredWorld, count: int, mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
        make_one = functools.partial(gymnasium.make, qualified_id(world), max_episode_steps=MAX_TURNS)
        return kind([make_one] * count, autoreset_mode=mode, **options)

    return make


VECTORS: dict[str, Maker] = {
    "ours": our_vector,
    "sync": gymnasium_vector(SyncVectorEnv),
    "async": gymnasium_vector(AsyncVectorEnv),
    "async without shared memory": gymnasium_vector(AsyncVectorEnv, shared_memory=False),
    "async spawned": gymnasium_vector(AsyncVectorEnv, context="spawn"),
}


@pytest.fixture(scope="module")
def reference_episode() -> Iterator[Callable[[RegisteredWorld], Reference]]:
    """A function that returns a task, actions, and what a single environment returns for them and for a `reset` after
    the end. The environments stay open, so that the vectors share what is slow to start, or fork while it runs."""
    with ExitStack() as envs:

        @functools.cache
        def play(world: RegisteredWorld) -> Reference:
            env = envs.enter_context(closing(make_env(world, max_episode_steps=MAX_TURNS)))
            task = text_env(env).tasks.test.ids[0]
            actions = expert_actions(env, task)
            return task, actions, [*replay(env, task, actions), env.reset()]

        yield play


def info_of(infos: dict[str, Any], index: int) -> dict[str, Any]:
    """Return the info of one environment from the infos of a vector."""
    return {
        key: info_of(value, index) if isinstance(value, dict) else value[index]
        for key, value in infos.items()
        if not key.startswith("_") and infos[f"_{key}"][index]
    }


def play_in_vector(vec: VectorEnv[Any, Any, Any], task: str, actions: list[str]) -> Iterator[Transcript]:
    """Return an iterator over the transcripts of the environments of a vector."""

    def rows(observations: Any, *rest: Any) -> list[tuple[Any, ...]]:
        *rewards_and_ends, infos = rest
        return [(observations[i], *(column[i] for column in rewards_and_ends), info_of(infos, i)) for i in range(count)]

    count = vec.num_envs
    rounds = [rows(*vec.reset(seed=[5] * count, options={"task": task}))]
    rounds.extend(rows(*vec.step((action,) * count)) for action in actions)
    match vec.metadata["autoreset_mode"]:
        case AutoresetMode.NEXT_STEP:
            rounds.append([(first, info) for first, *_, info in rows(*vec.step(("to the winds",) * count))])
        case AutoresetMode.SAME_STEP:
            last = rounds.pop()
            infos = [info for *_, info in last]
            finals = [(info.pop("final_obs"), info.pop("final_info")) for info in infos]
            rounds.append([(end, *ends, info) for (_, *ends, _), (end, info) in zip(last, finals, strict=True)])
            rounds.append([(first, info) for first, *_, info in last])
        case _:
            rounds.append(rows(*vec.reset(options={"reset_mask": np.ones(count, np.bool_)})))
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
    """Yield all cases for fast environments. Slow ones get our vector and one in spawned processes."""
    for world in WORLDS:
        for case in (CASES[0], SPAWNED, *([] if is_slow(world) else [*CASES[1:], *MORE_CASES])):
            everyday = case in CASES and not is_slow(world)
            name = "-".join(map(str, (*case, world.id)))
            yield pytest.param(*case, world, marks=[] if everyday else [pytest.mark.long], id=name)


# Python 3.12 and later warn about forks.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(("vector", "mode", "count", "world"), [*_cases()])
def test_vector_matches_a_single_environment(
    vector: str,
    mode: AutoresetMode,
    count: int,
    world: RegisteredWorld,
    reference_episode: Callable[[RegisteredWorld], Reference],
) -> None:
    task, actions, expected = reference_episode(world)
    vec = VECTORS[vector](world, count, mode)
    assert list(play_in_vector(vec, task, actions)) == [expected] * count
    vec.close()


@every_world
def test_tasks_and_results_can_be_pickled(world: RegisteredWorld) -> None:
    env = make_env(world)
    task = text_env(env).tasks.train[0]
    results = list(replay(env, task.id, ["xyzzy"]))
    assert pickle.loads(pickle.dumps((task, results))) == (task, results)


@every_world
def test_close_works_twice_and_before_use(world: RegisteredWorld) -> None:
    unused, used = make_env(world), make_env(world)
    used.reset()
    for env in (unused, used, unused, used):
        env.close()


# Over HTTP, with a server process that `serve` starts.

FEW_TASKS = 1_000
"""Manifests with fewer tasks than this are also compared for fast environments."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve_process() as server:
        yield server.url
        server.process.terminate()  # closes its environments
        server.process.wait()


def remote_env(world: RegisteredWorld, url: str, **options: Any) -> gymnasium.Env[str, str]:
    return gymnasium.make(f"agentgym_envs:{REMOTE}", url=url, env=world.id, **options)


def replay_with_oracle(env: gymnasium.Env[str, str], task: str, actions: list[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the results of `reset` and the steps, and the oracle's output and the scene before each step."""
    oracle = text_env(env)
    yield env.reset(seed=5, options={"task": task})
    for action in actions:
        yield oracle.oracle(), oracle.oracle_thought(), oracle.oracle_plan(), oracle.scene()
        yield env.step(action)


def check_remote_episode(world: RegisteredWorld, url: str) -> None:
    """Check that an environment on a server returns exactly what a local one returns."""
    with (
        closing(remote_env(world, url, horizon=MAX_TURNS)) as remote,
        closing(make_env(world, max_episode_steps=MAX_TURNS)) as local,
    ):
        for split in ("train", "test"):
            assert remote.reset(seed=6, options={"split": split}) == local.reset(seed=6, options={"split": split})
        task = text_env(local).tasks.test.ids[1]
        actions = expert_actions(remote, task)
        assert list(replay_with_oracle(remote, task, actions)) == list(replay_with_oracle(local, task, actions))


def check_remote_manifest(world: RegisteredWorld, url: str) -> None:
    committed = resources.files(text_env(make_env(world)).package).joinpath("manifest.json").read_text(encoding="utf-8")
    with closing(remote_env(world, url)) as remote:
        assert text_env(remote).tasks.manifest() == json.loads(committed)


@pytest.mark.long
def test_fast_environments_keep_the_contract_over_http(url: str) -> None:
    """The contract's demands on the connection don't depend on the environment, so the fastest suffice."""
    fast = [world for world in WORLDS if text_env(make_env(world)).step_seconds < FAST_STEP_SECONDS / 10]
    assert fast
    for world in fast:
        with closing(remote_env(world, url)) as remote:
            check_text_env(remote, tasks=1, processes=False)
        check_remote_episode(world, url)
        if len(text_env(make_env(world)).tasks) < FEW_TASKS:
            check_remote_manifest(world, url)


@pytest.mark.long
@every_world
def test_remote_environment_matches_a_local_one(world: RegisteredWorld, url: str) -> None:
    check_remote_episode(world, url)


@pytest.mark.long
@every_world
def test_remote_task_sets_match_the_manifest(world: RegisteredWorld, url: str) -> None:
    check_remote_manifest(world, url)
