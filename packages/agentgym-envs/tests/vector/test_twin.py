"""Tests that a `TextVectorEnv` agrees step by step with Gymnasium's `SyncVectorEnv` of the same environments."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from contextlib import ExitStack
from itertools import product
from typing import Any

import agentgym_envs  # noqa: F401 - registers the worlds
import brittle_world
import gymnasium
import numpy as np
import pytest
from agentgym_envs.vector.vector_env import TextVectorEnv
from agentgym_envs.vector.vector_infos import batch_infos
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from serve_process import serve_process

DOOR = f"brittle_world:{brittle_world.ENV_ID}"
CRAFT = "agentgym/TextCraft-v0"
N = 3
every_mode = pytest.mark.parametrize("mode", AutoresetMode)


def same(one: Any, other: Any) -> bool:
    """Return whether two results are equal, including the types of arrays."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tolist() == other.tolist()
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


class Twins:
    """The same environments in a `TextVectorEnv` and in a `SyncVectorEnv`, whose results must be equal."""

    def __init__(self, world: str, mode: AutoresetMode, backend: str = "inline", **options: Any) -> None:
        create = functools.partial(gymnasium.make, world, **options)
        self.ours = TextVectorEnv(world, num_envs=N, autoreset_mode=mode, backend=backend, **options)
        self.theirs = SyncVectorEnv([create] * N, autoreset_mode=mode)
        self.over = np.zeros(N, np.bool_)

    def reset(self, **arguments: Any) -> tuple[Any, ...]:
        theirs = self.theirs.reset(**copy.deepcopy(arguments))
        passed = copy.deepcopy(arguments)
        ours = self.ours.reset(**passed)
        assert same(ours, theirs)
        assert same(passed, arguments), "reset() changed its arguments"
        mask = (arguments.get("options") or {}).get("reset_mask", np.ones(N, np.bool_))
        self.over &= ~mask
        return ours

    def step(self, actions: list[str]) -> tuple[Any, ...]:
        ours = self.ours.step(actions)
        theirs = self.theirs.step(tuple(actions))
        assert same(ours, theirs)
        self.over = ours[2] | ours[3]
        return ours

    def reset_ended(self) -> None:
        """Reset the environments that have ended, which mode DISABLED leaves to the caller."""
        if self.over.any():
            self.reset(options={"reset_mask": self.over.copy()})

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


@pytest.mark.parametrize(
    ("mode", "backend"),
    [
        *product(AutoresetMode, ["inline", "thread"]),
        (AutoresetMode.SAME_STEP, "process"),
        pytest.param(AutoresetMode.NEXT_STEP, "process", marks=pytest.mark.long),
        pytest.param(AutoresetMode.DISABLED, "process", marks=pytest.mark.long),
    ],
)
def test_vectors_agree_over_many_steps(mode: AutoresetMode, backend: str) -> None:
    twins = Twins(DOOR, mode, backend)
    twins.reset(seed=3)
    for turn in range(20):
        twins.step([["knock", "open", "knock"][(turn + i) % 3] for i in range(N)])
        if mode is AutoresetMode.DISABLED:
            twins.reset_ended()
    assert twins.ours.np_random_seed == twins.theirs.np_random_seed == (3, 4, 5)
    twins.close()


@every_mode
def test_vectors_agree_on_textcraft_with_its_expert(mode: AutoresetMode) -> None:
    twins = Twins(CRAFT, mode, max_episode_steps=7)
    twins.reset(seed=[1, 4, 8], options={"task": "textcraft/test/red_sandstone_stairs"})
    endings = 0
    for _ in range(30):
        twins.step(list(twins.ours.call("oracle")))
        endings += int(twins.over.sum())
        if mode is AutoresetMode.DISABLED:
            twins.reset_ended()
    assert endings > 5
    twins.close()


masks = st.none() | st.lists(st.booleans(), min_size=N, max_size=N).filter(any)
seeds = st.none() | st.integers(0, 9) | st.lists(st.none() | st.integers(0, 9), min_size=N, max_size=N)
tasks = st.none() | st.sampled_from(["door/train/2", "door/test/1"])
resets = st.tuples(masks, seeds, tasks)
steps = st.lists(st.sampled_from(["knock", "open", "xyzzy"]), min_size=N, max_size=N)


@settings(max_examples=60)
@given(st.sampled_from(AutoresetMode), st.lists(steps | steps | resets, max_size=25))
def test_vectors_agree_on_random_steps_and_resets(mode: AutoresetMode, script: list[Any]) -> None:
    twins = Twins(DOOR, mode)
    twins.reset(seed=0)
    for line in script:
        if isinstance(line, tuple):
            mask, seed, task = line
            options: dict[str, Any] = {} if task is None else {"task": task}
            options |= {} if mask is None else {"reset_mask": np.array(mask)}
            twins.reset(seed=seed, options=options or None)
        else:
            if mode is AutoresetMode.DISABLED:
                twins.reset_ended()
            twins.step(line)
    twins.close()


# Without what Gymnasium's own batching can't represent; see `test_columns_of_mixed_types_are_batched`.
values: dict[str, st.SearchStrategy[Any]] = {
    "number": st.integers(-9, 9),
    "real": st.floats(allow_nan=False),
    "truth": st.booleans(),
    "text": st.text(),
    "list": st.lists(st.text()),
    "maybe": st.none() | st.text(),
    "single": st.integers(0, 9).map(np.float32),
    "picture": st.integers(0, 9).map(lambda fill: np.full((2, 3), fill, np.uint8)),
    "final_obs": st.text(),
}
flat = st.fixed_dictionaries({}, optional=values)
nested = st.fixed_dictionaries({}, optional=values | {"inner": st.fixed_dictionaries({}, optional={"deep": flat})})


@given(st.dictionaries(st.integers(0, N - 1), nested))
def test_infos_are_batched_as_by_gymnasium(infos: dict[int, dict[str, Any]]) -> None:
    infos = dict(sorted(infos.items()))
    vector = SyncVectorEnv([functools.partial(gymnasium.make, DOOR)] * N)
    theirs: dict[str, Any] = {}
    for i, info in infos.items():
        theirs = vector._add_info(theirs, info, i)
    assert same(batch_infos(infos, N), theirs)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([1, 0.5, 2], np.array([1.0, 0.5, 2.0])),
        ([True, 3, 0], np.array([1, 3, 0])),
        ([1, None, "x"], np.array([1, None, "x"], object)),
        ([{"a": 1}, None, None], np.array([{"a": 1}, None, None], object)),
    ],
)
def test_columns_of_mixed_types_are_batched(column: list[Any], expected: Any) -> None:
    batch = batch_infos({i: {"key": value} for i, value in enumerate(column)}, N)
    assert same(batch, {"key": expected, "_key": np.ones(N, np.bool_)})


def test_images_of_different_sizes_share_a_column() -> None:
    small, large = np.zeros((1, 1)), np.zeros((2, 2))
    batch = batch_infos({0: {"screenshot": small}, 2: {"screenshot": large}}, N)
    assert batch["screenshot"][0] is small
    assert batch["screenshot"][2] is large
    assert batch["_screenshot"].tolist() == [True, False, True]


@every_mode
def test_manual_reset_after_the_end_cancels_the_autoreset(mode: AutoresetMode) -> None:
    vec = TextVectorEnv(DOOR, num_envs=2, autoreset_mode=mode)
    vec.reset(options={"task": "door/train/1"})
    vec.step(["open", "knock"])
    vec.reset(options={"task": "door/train/1"})
    observations, *_ = vec.step(["knock", "knock"])
    assert observations == ("You knocked 1 times.",) * 2
    vec.close()


def run_single(script: Callable[[gymnasium.Env[str, str]], list[Any]]) -> list[Any]:
    env = gymnasium.make(DOOR)
    result = script(env)
    env.close()
    return result


def test_autoreset_draws_from_the_last_split_and_generator() -> None:
    def expected(env: gymnasium.Env[str, str]) -> list[str]:
        env.reset(seed=7, options={"split": "test"})
        return [env.reset(options={"split": "test"})[1]["task_id"] for _ in range(10)]

    vec = TextVectorEnv(DOOR, num_envs=2, autoreset_mode="SameStep")
    vec.reset(seed=[7, 0], options={"split": ["test", "train"]})
    drawn = [vec.step(["open", "open"])[4]["task_id"] for _ in range(10)]
    assert [first for first, _ in drawn] == run_single(expected)
    assert all(second.startswith("door/train/") for _, second in drawn)
    vec.close()


@pytest.mark.long
def test_vectors_on_a_server_agree_with_local_vectors() -> None:
    options: dict[str, Any] = {"autoreset_mode": "SameStep", "max_episode_steps": 2}
    with serve_process() as server, ExitStack() as vectors:
        local, remote, remote_envs = (
            vectors.enter_context(TextVectorEnv(world, num_envs=2, **options, **keywords))
            for world, keywords in [
                (CRAFT, {"backend": "inline"}),
                (CRAFT, {"backend": server.url}),
                ("agentgym/Remote-v0", {"url": server.url, "env": CRAFT}),
            ]
        )
        assert (local.observation_space, local.action_space) == (remote.observation_space, remote.action_space)
        assert (local.metadata, local.render_mode) == (remote.metadata, remote.render_mode)
        assert local.reset(seed=3)[0] == remote.reset(seed=3)[0] == remote_envs.reset(seed=3)[0]
        for _ in range(4):
            actions = local.call("oracle")
            assert remote.call("oracle") == actions
            results = [vec.step(actions) for vec in (local, remote, remote_envs)]
            assert len({observations for observations, *_ in results}) == 1
            assert len({tuple(infos["state_key"]) for *_, infos in results}) == 1
        with pytest.raises(ValueError, match="on a server has no np_random_seed"):
            remote.np_random_seed  # noqa: B018
