"""Tests of `gymnasium.make_vec` and of Gymnasium's vector API with the environments that it returns."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import agentgym_envs
import brittle_world
import gymnasium
import numpy as np
import pytest
from agentgym_envs import WORLDS
from agentgym_envs.core.text_space import TextSpace
from agentgym_envs.vector.vector_env import TextVectorEnv
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.error import NameNotFound, ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit
from gymnasium.wrappers.vector import (
    DictInfoToList,
    RecordEpisodeStatistics,
    TransformAction,
    TransformObservation,
    TransformReward,
)

DOOR = brittle_world.ENV_ID
ONE, TWO = {"task": "door/train/1"}, {"task": "door/train/2"}


@pytest.fixture
def vec() -> Iterator[TextVectorEnv]:
    env = gymnasium.make_vec(DOOR, num_envs=2, render_mode="ansi")
    assert isinstance(env, TextVectorEnv)
    yield env
    env.close()


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.id)
def test_every_world_has_a_vector_entry_point(world: agentgym_envs.RegisteredWorld) -> None:
    spec = gymnasium.spec(world.id)
    entry = spec.vector_entry_point
    assert isinstance(entry, str)
    assert load_env_creator(entry).func is TextVectorEnv  # pyright: ignore[reportFunctionMemberAccess]
    assert EnvSpec.from_json(spec.to_json()) == spec


def test_unknown_environment_has_no_vector_entry_point() -> None:
    with pytest.raises(AttributeError, match=r"neither an environment 'Nowhere-v0' nor"):
        load_env_creator("agentgym_envs.vector.vector_env:Nowhere-v0")
    with pytest.raises(NameNotFound):
        gymnasium.make_vec("agentgym/Nowhere-v0")


_SCRIPT = """
import sys, gymnasium
world = gymnasium.make("agentgym_envs:agentgym/TextCraft-v0")
assert "agentgym_envs.vector.vector_env" not in sys.modules
assert gymnasium.spec("agentgym/TextCraft-v0").max_episode_steps == world.spec.max_episode_steps
vec = gymnasium.make_vec("agentgym_envs:agentgym/TextCraft-v0", num_envs=2)
print(type(vec).__name__, vec.reset(seed=1)[1]["task_id"].tolist(), world.reset(seed=1)[1]["task_id"])
"""


def test_make_and_make_vec_import_the_package() -> None:
    printed = subprocess.run([sys.executable, "-c", _SCRIPT], check=True, capture_output=True, encoding="utf-8").stdout
    first = "textcraft/train/"
    assert printed.startswith(f"TextVectorEnv ['{first}")
    assert printed.count(first) == 3


def test_spec_takes_no_module_prefix() -> None:
    # Documented as a limitation, which a Gymnasium that imports the module here would remove.
    with pytest.raises(gymnasium.error.NamespaceNotFound):
        gymnasium.spec("agentgym_envs:agentgym/TextCraft-v0")


def test_vector_has_the_standard_attributes(vec: TextVectorEnv) -> None:
    assert vec.num_envs == 2
    assert vec.single_observation_space == TextSpace(32_768)
    assert vec.observation_space == gymnasium.spaces.Tuple([TextSpace(32_768)] * 2)
    assert vec.action_space == gymnasium.spaces.Tuple([TextSpace(4_096)] * 2)
    assert vec.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert vec.metadata["render_modes"] == ["ansi", "rgb_array"]
    assert "autoreset_mode" not in brittle_world.BrittleDoor.metadata
    assert vec.render_mode == "ansi"
    assert repr(vec) == f"TextVectorEnv({DOOR}, num_envs=2)"
    assert vec.unwrapped is vec
    observations, _ = vec.reset(seed=1)
    assert observations in vec.observation_space
    assert vec.step(vec.action_space.sample())[0] in vec.observation_space


def test_spec_creates_an_equal_vector(vec: TextVectorEnv) -> None:
    first = gymnasium.make_vec(DOOR, num_envs=3, autoreset_mode="SameStep", max_episode_steps=2, backend="thread")
    assert first.spec is not None
    spec = EnvSpec.from_json(first.spec.to_json())
    assert json.loads(first.spec.to_json())["kwargs"]["backend"] == "thread"
    second = gymnasium.make_vec(spec)
    assert (second.num_envs, second.metadata) == (3, first.metadata)
    for vector in (first, second):
        vector.reset(options=TWO)
        assert not vector.step(["knock"] * 3)[3].any()
        assert vector.step(["knock"] * 3)[3].all()
        vector.close()


def test_wrappers_need_gymnasiums_own_vectors_which_agree() -> None:
    limited = {"wrappers": [partial(TimeLimit, max_episode_steps=2)], "vector_kwargs": {"autoreset_mode": "SameStep"}}
    for world in (DOOR, "CartPole-v1"):  # as for every environment with a vector entry point
        with pytest.raises(gymnasium.error.Error, match="vector_kwargs"):
            gymnasium.make_vec(world, num_envs=2, **limited)
    theirs = gymnasium.make_vec(DOOR, num_envs=2, vectorization_mode="sync", **limited)
    ours = gymnasium.make_vec(DOOR, num_envs=2, max_episode_steps=2, autoreset_mode="SameStep")
    with closing(theirs), closing(ours):
        assert theirs.reset(seed=3)[0] == ours.reset(seed=3)[0]
        for actions in (["knock", "push"], ["push", "knock"]) * 4:
            expected, got = theirs.step(actions), ours.step(actions)
            assert expected[0] == got[0]
            for a, b in zip(expected[1:4], got[1:4], strict=True):
                assert a.tolist() == b.tolist()
            assert expected[4]["task_id"].tolist() == got[4]["task_id"].tolist()


@pytest.mark.parametrize(("options", "limit"), [({}, 6), ({"max_episode_steps": 2}, 2)])
def test_time_limit_is_applied(options: dict[str, int], limit: int) -> None:
    vec = gymnasium.make_vec(DOOR, num_envs=2, **options)
    vec.reset(options=TWO)
    truncations = [vec.step(["knock"] * 2)[3].tolist() for _ in range(limit)]
    assert truncations == [[False, False]] * (limit - 1) + [[True, True]]
    vec.close()


def test_options_can_differ_between_environments() -> None:
    with TextVectorEnv(
        "agentgym/TextCraft-v0", num_envs=2, slot_options=[{"depth": (1, 1)}, {"depth": (3, 3)}], distractors=0
    ) as vec:
        assert [len(tasks) for tasks in vec.get_attr("tasks")] == [144, 116]


def test_tasks_and_splits_can_differ_between_environments(vec: TextVectorEnv) -> None:
    options = {"task": ["door/test/0", None], "split": ("train", "test")}
    observations, infos = vec.reset(seed=3, options=options)
    assert observations[0] == "Knock 0 times."
    assert infos["task_id"][1].startswith("door/test/")
    assert options == {"task": ["door/test/0", None], "split": ("train", "test")}


def test_integer_seed_counts_up(vec: TextVectorEnv) -> None:
    vec.reset(seed=np.int64(4))  # pyright: ignore[reportArgumentType] - numpy integers are accepted
    assert vec.np_random_seed == (4, 5)
    vec.reset(seed=[9, None])
    assert vec.np_random_seed == (9, 5)
    assert [generator.bit_generator for generator in vec.np_random] == [
        generator.bit_generator for generator in vec.get_attr("np_random")
    ]


@pytest.mark.parametrize("actions", [("knock", "open"), ["knock", "open"], np.array(["knock", "open"])])
def test_any_sequence_of_strings_is_accepted_as_actions(vec: TextVectorEnv, actions: Any) -> None:
    vec.reset(options=ONE)
    assert vec.step(actions)[0] == ("You knocked 1 times.", "The door opens.")


def test_object_array_is_accepted_as_actions(vec: TextVectorEnv) -> None:
    vec.reset(options=ONE)
    assert vec.step(np.array(["knock", "open"], object))[1].tolist() == [0.5, 0.0]


@pytest.mark.parametrize(
    ("actions", "error", "message"),
    [
        ("ab", TypeError, "sequence of 2 strings, not str"),
        ({"a", "b"}, TypeError, "sequence of 2 strings, not set"),
        (None, TypeError, "sequence of 2 strings, not NoneType"),
        (["open"], ValueError, "1 actions for 2 environments"),
        (["open"] * 3, ValueError, "3 actions for 2 environments"),
        (["open", 3], TypeError, "not int"),
        (np.array([1, 2]), TypeError, "not int"),
    ],
)
def test_invalid_actions_are_rejected(vec: TextVectorEnv, actions: Any, error: type[Exception], message: str) -> None:
    vec.reset(options=ONE)
    with pytest.raises(error, match=message):
        vec.step(actions)
    assert vec.step(["open", "open"])[2].all(), "a rejected call changes nothing"


def test_seeds_may_be_numpy_integers(vec: TextVectorEnv) -> None:
    assert vec.reset(seed=np.array([5, 6]))[0] == vec.reset(seed=5)[0]  # type: ignore[arg-type]


def test_step_before_reset_is_rejected(vec: TextVectorEnv) -> None:
    with pytest.raises(ResetNeeded, match=r"\[0, 1\] of 2"):
        vec.step(["open", "open"])
    vec.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ResetNeeded, match=r"\[1\] of 2"):
        vec.step(["open", "open"])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"seed": [1, 2, 3]}, ValueError, "one seed for all 2 environments or a list of 2"),
        ({"options": {"task": ["door/train/1"]}}, ValueError, "one task for all 2"),
        ({"options": {"task": "door/train/99"}}, KeyError, "There is no task 'door/train/99'"),
        ({"options": {"task": [["door/train/1"]] * 2}}, KeyError, r"There is no task \['door/train/1'\]"),
        ({"options": {"split": "exam"}}, ValueError, "no split 'exam'"),
        ({"options": {"tusk": 1}}, ValueError, r"Unknown reset option \['tusk'\]"),
        ({"options": {"reset_mask": [True, False]}}, ValueError, "numpy array of 2 bool"),
        ({"options": {"reset_mask": np.array([1, 0])}}, ValueError, "numpy array of 2 bool"),
        ({"options": {"reset_mask": np.array([True])}}, ValueError, "numpy array of 2 bool"),
        ({"options": {"reset_mask": np.array([False, False])}}, ValueError, "selects no environment"),
    ],
)
def test_invalid_reset_is_rejected(vec: TextVectorEnv, arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        vec.reset(**arguments)
    assert vec.reset(options=ONE)[0] == ("Knock 1 times.",) * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"autoreset_mode": "sometimes"}, "no autoreset_mode 'sometimes'; there are NextStep, SameStep, Disabled"),
        ({"backend": "carrier pigeon"}, "no backend 'carrier pigeon'"),
        ({"deadline": 0}, "deadline must be above 0"),
        ({"slot_options": [{}]}, "options for 1 slots, but 2 slots"),
        ({"colour": "green"}, "has no option 'colour'. Its options: chars."),
        ({"slot_options": [{}, {"chars": 5}]}, r"TextSpace\(32768, min_length=0\) and .*TextSpace\(5"),
        ({"num_envs": 0}, "^num_envs must be at least 1, not 0"),
    ],
)
def test_invalid_options_are_rejected_immediately(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gymnasium.make_vec(DOOR, **{"num_envs": 2, **options})


@pytest.mark.parametrize("backend", ["inline", "thread", "process"])
def test_call_get_attr_and_set_attr_reach_the_environments(backend: str) -> None:
    """Also for environments that only this process has registered."""
    with TextVectorEnv(DOOR, num_envs=2, backend=backend, render_mode="ansi") as vec:
        vec.reset(options={"task": ["door/train/1", "door/train/3"]})
        assert vec.render() == ("Knock 1 times.", "Knock 3 times.")
        assert vec.call("oracle") == ("knock", "knock")
        assert vec.call("break_starts", 0, more=0) == (0, 0)
        assert vec.get_attr("goal") == (1, 3)
        vec.set_attr("knocks", [1, 2])
        assert vec.get_attr("knocks") == (1, 2)
        assert vec.call("oracle") == ("open", "knock")
        vec.set_attr("goal", 2)
        assert vec.get_attr("goal") == (2, 2)
        with pytest.raises(ValueError, match="one value for all 2"):
            vec.set_attr("goal", [1, 2, 3])
        with pytest.raises(AttributeError, match="bell"):
            vec.get_attr("bell")


def test_close_is_final_and_idempotent() -> None:
    with gymnasium.make_vec(DOOR, num_envs=2, backend="thread") as vec:  # pyright: ignore[reportGeneralTypeIssues]
        vec.reset()
    assert vec.closed
    vec.close()
    with pytest.raises(RuntimeError, match="closed"):
        vec.reset()


# Gymnasium's wrappers.


def test_record_episode_statistics() -> None:
    vec = RecordEpisodeStatistics(gymnasium.make_vec(DOOR, num_envs=2))
    vec.reset(options=ONE)
    vec.step(["knock", "knock"])
    *_, infos = vec.step(["open", "knock"])
    assert infos["episode"]["r"].tolist() == [1.0, 0.0]
    assert infos["episode"]["l"].tolist() == [2, 0]
    assert infos["_episode"].tolist() == [True, False]
    vec.step(["not looked at", "open"])
    assert list(vec.return_queue) == [1.0, 0.0]
    vec.close()


def test_dict_info_to_list() -> None:
    vec = DictInfoToList(gymnasium.make_vec(DOOR, num_envs=2, autoreset_mode="SameStep"))
    single = gymnasium.make(DOOR)
    info = single.reset(options=ONE)[1]
    assert vec.reset(options=ONE)[1] == [info, info]
    first, second = vec.step(["open", "knock"])[4]
    assert second == single.step("knock")[4]
    assert first["final_obs"] == "The door opens."
    assert first["final_info"]["raw"] == {"knocks": 0, "parity": {"odd": False}}
    vec.close()


def test_rewards_actions_and_observations_are_transformed() -> None:
    vec: Any = gymnasium.make_vec(DOOR, num_envs=2)
    vec = TransformReward(vec, lambda rewards: rewards * 10)
    vec = TransformAction(vec, lambda replies: [reply.removeprefix("Action: ") for reply in replies])
    vec = TransformObservation(vec, lambda texts: tuple(map(str.upper, texts)), vec.observation_space)
    assert vec.reset(options=ONE)[0] == ("KNOCK 1 TIMES.",) * 2
    observations, rewards, *_ = vec.step(["Action: knock", "Action: open"])
    assert observations == ("YOU KNOCKED 1 TIMES.", "THE DOOR OPENS.")
    assert rewards.tolist() == [5.0, 0.0]
    vec.close()


@pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)  # of forks, from Python 3.12 on
def test_gymnasiums_workers_can_be_forked_after_ours() -> None:
    with ExitStack() as vectors:
        ours = [
            vectors.enter_context(TextVectorEnv(DOOR, num_envs=2, backend=backend)) for backend in ("thread", "process")
        ]
        for vec in ours:
            vec.reset(options=TWO)
        forked = vectors.enter_context(closing(gymnasium.make_vec(DOOR, num_envs=2, vectorization_mode="async")))
        forked.reset(options=TWO)
        for vec in (forked, *ours, forked, *ours):
            observations = vec.step(("knock", "knock"))[0]
        assert observations == ("You knocked 2 times.",) * 2
        assert forked.step(("open", "open"))[1].tolist() == [0.5, 0.5]
    assert all(vec.closed for vec in (forked, *ours))
