"""Tests that `reset` and `step` validate what an environment returns, and that its exceptions fail only the episode."""

from __future__ import annotations

import asyncio
import math
import re
import sys
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from agentgym_envs import (
    EnvPool,
    Episode,
    EpisodeSpec,
    Feedback,
    InvalidFeedback,
    Malformed,
    Policy,
    PoolSlot,
    Reply,
    Sample,
    TurnContext,
    play,
    play_episode,
    play_pool,
    text_env,
)
from agentgym_envs.agents.formats import Bare
from agentgym_envs.core.feedback import EnvFault
from door_policies import FunctionPolicy
from door_world import ENV_ID, Door, registered_env
from gymnasium.error import ResetNeeded


def _door(**hooks: Callable[..., Any]) -> type[Door]:
    """Return a door class with other hooks, which take the environment and the arguments of the hook."""
    return type("Door", (Door,), hooks)


def _step(env: gymnasium.Env[str, str], action: str = "knock") -> Any:
    env.reset(options={"task": "door/train/2"})
    return env.step(action)


GARBAGE: dict[str, tuple[dict[str, Callable[..., Any]], str]] = {
    "nan": ({"_standing": lambda _: (math.nan, False)}, "`score` must be a finite number in [0, 1], not nan (float)"),
    "inf": ({"_standing": lambda _: (math.inf, False)}, "`score` must be a finite number in [0, 1], not inf (float)"),
    "low": ({"_standing": lambda _: (-1e30, False)}, "`score` must be a finite number in [0, 1], not -1e+30 (float)"),
    "high": ({"_standing": lambda _: (1.5, False)}, "`score` must be a finite number in [0, 1], not 1.5 (float)"),
    "none": ({"_standing": lambda _: (None, False)}, "`score` must be a finite number in [0, 1], not None (NoneType)"),
    "text": ({"_standing": lambda _: ("0.5", False)}, "`score` must be a finite number in [0, 1], not '0.5' (str)"),
    "success": ({"_standing": lambda _: (0.5, "yes")}, "`success` must be True or False, not 'yes' (str)"),
    "single": ({"_standing": lambda _: 0.5}, "`score and success` must be a tuple of two, not 0.5 (float)"),
    "actions": ({"_available_actions": lambda _: "open"}, "`available_actions` must be a list of texts (str) or None"),
    "state": ({"_state": lambda _: 7}, "`state` must be text (str), not 7 (int)"),
    "raw": ({"_raw": lambda _: None}, "`raw` must be a dict, not None (NoneType)"),
}


@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("method", ["reset", "step"])
def test_invalid_feedback_error_names_environment_task_and_field(kind: str, method: str) -> None:
    hooks, rule = GARBAGE[kind]
    broken = [method == "reset"]
    patched = {name: _break_later(broken, name, hook) for name, hook in hooks.items()}
    with registered_env(_door(**patched)) as env:
        if method == "reset":
            with pytest.raises(InvalidFeedback) as error:
                env.reset(options={"task": "door/train/2"})
        else:
            env.reset(options={"task": "door/train/2"})
            broken[0] = True
            with pytest.raises(InvalidFeedback) as error:
                env.step("knock")
    assert str(error.value).startswith(f"{ENV_ID} broke the environment contract in task door/train/2: {rule}")
    assert str(error.value).endswith("Fix the environment; docs/howto/add-a-world.md describes the contract.")


def _break_later(broken: list[bool], name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that behaves as the door's own until `broken[0]` is set."""
    return lambda self: hook(self) if broken[0] else getattr(Door, name)(self)


@pytest.mark.parametrize(
    ("returned", "rule"),
    [
        (None, "`feedback` must be a Feedback, not None (NoneType)"),
        (Feedback(7), "`observation` must be text (str), not 7 (int)"),  # pyright: ignore[reportArgumentType]
        (Feedback(b"x"), "`observation` must be text (str), not b'x' (bytes)"),  # pyright: ignore[reportArgumentType]
        (Feedback("x", valid=1), "`valid` must be True or False, not 1 (int)"),  # pyright: ignore[reportArgumentType]
        (Feedback("x", True, None), "`terminated` must be True or False"),  # pyright: ignore[reportArgumentType]
    ],
    ids=str,
)
def test_act_must_return_a_feedback_of_text_and_flags(returned: Any, rule: str) -> None:
    with registered_env(_door(_act=lambda *_: returned)) as env, pytest.raises(InvalidFeedback) as error:
        _step(env)
    assert rule in str(error.value)


def test_first_observation_is_validated() -> None:
    with (
        registered_env(_door(_start=lambda *_: None)) as env,
        pytest.raises(InvalidFeedback, match="`observation` must be text"),
    ):
        env.reset(options={"task": "door/train/2"})


def test_numpy_values_are_converted_to_python_types() -> None:
    def standing(door: Door) -> Any:
        return np.float32(0.5 * bool(door.knocks)), np.bool_(True)

    with registered_env(_door(_standing=standing, _act=lambda *_: Feedback("half \ud800", np.bool_(True)))) as env:  # pyright: ignore[reportArgumentType]
        observation, reward, *_, info = _step(env)
    assert observation == "half ?"
    assert (type(reward), type(info["score"]), info["success"], info["valid"]) == (float, float, True, True)


@pytest.mark.parametrize(("score", "clipped"), [(1 + 1e-9, 1.0), (-1e-9, 0.0)])
def test_score_outside_its_range_by_rounding_is_clipped(score: float, clipped: float) -> None:
    with registered_env(_door(_standing=lambda _: (score, False))) as env:
        assert _step(env)[4]["score"] == clipped


# Exceptions of an environment.


def _stumble(door: Door, *_: Any) -> Any:
    raise ZeroDivisionError("no key")


ERROR = f"EnvFault: {ENV_ID} raised ZeroDivisionError: no key (test_feedback.py, line "


@pytest.mark.parametrize("hook", ["_start", "_act", "_standing", "_state"])
def test_environment_exception_fails_the_episode_and_names_the_line(hook: str) -> None:
    with registered_env(_door(**{hook: _stumble})) as env:
        episode = play(env, Knocker(), EpisodeSpec("door/train/1"))
    assert (episode.stop, episode.score, episode.task_id) == ("failed", None, "door/train/1")
    assert episode.error is not None
    assert episode.error.startswith(ERROR)
    assert episode.error.endswith("in _stumble)")
    assert Episode.from_json(episode.to_json()) == episode


def test_stop_iteration_of_an_environment_fails_the_episode() -> None:
    """It must not reach a coroutine, which would turn it into a RuntimeError of its own."""
    with registered_env(_door(_act=lambda *_: next(iter(())))) as env:
        episode = play(env, Knocker(), EpisodeSpec("door/train/1"))
    assert episode.stop == "failed"
    assert str(episode.error).startswith(f"EnvFault: {ENV_ID} raised StopIteration (test_feedback.py, line ")


def test_sys_exit_of_an_environment_fails_the_episode() -> None:
    with registered_env(_door(_act=lambda *_: sys.exit(0))) as env:
        episode = play(env, Knocker(), EpisodeSpec("door/train/1"))
    assert episode.stop == "failed"
    assert str(episode.error).startswith(f"EnvFault: {ENV_ID} raised SystemExit: 0 (test_feedback.py, line ")


class Opener(Policy):
    name = "opener"

    async def reply(self, context: TurnContext) -> Reply:
        return Reply("open")


class Knocker(Policy):
    name = "knocker"

    async def reply(self, context: TurnContext) -> Reply:
        return Reply("knock")


@pytest.mark.parametrize("backend", ["inline", "thread"])
@pytest.mark.parametrize("hook", ["_start", "_act"])
def test_environment_exception_in_a_pool_fails_only_that_episode(hook: str, backend: str) -> None:
    def act(door: Door, *arguments: Any) -> Any:
        return _stumble(door) if door.task.difficulty == 1 else getattr(Door, hook)(door, *arguments)

    async def play_all() -> list[Episode]:
        specs = [EpisodeSpec(f"door/train/{knocks}") for knocks in (0, 1, 2)]
        with registered_env(_door(**{hook: act})) as env, EnvPool(ENV_ID, 1, backend) as pool:
            async with aclosing(play_pool(pool, Opener(), specs, env=Bare(env), horizon=1)) as episodes:
                return [episode async for episode in episodes]

    first, failed, last = asyncio.run(play_all())
    assert (first.stop, failed.stop, last.stop) == ("terminated", "failed", "terminated")
    assert failed.error is not None
    assert failed.error.startswith(ERROR)


@pytest.mark.parametrize(
    ("field", "bad"),
    [("reward", math.nan), ("reward", math.inf), ("score", math.nan), ("score", 1e30), ("score", -0.5)],
)
def test_invalid_numbers_of_a_wrapper_fail_the_episode(field: str, bad: float) -> None:
    class Shaped(gymnasium.Wrapper[str, str, str, str]):
        def step(self, action: str) -> Any:
            observation, reward, *over, info = self.env.step(action)
            return observation, bad if field == "reward" else reward, *over, info | {field: bad}

    with registered_env(Door) as env:
        episode = play(Shaped(env), Knocker(), EpisodeSpec("door/train/1"), horizon=2)
    assert (episode.stop, episode.score, episode.turns[:-1]) == ("failed", None, ())
    assert f"{ENV_ID} broke the environment contract in task door/train/1: `{field}` must be" in str(episode.error)
    assert Episode.from_json(episode.to_json()) == episode


def _invalid_info(door: Door) -> dict[str, Any]:
    return {"task_id": door.task.id, "state_key": "", "score": "much", "success": False}  # without `valid`


def _invalid_info_later(door: Door) -> dict[str, Any]:
    return _invalid_info(door) | {"score": 0.0} if door.knocks else Door._info(door)


@pytest.mark.parametrize("info", [_invalid_info, _invalid_info_later, lambda _: {}, lambda _: None])
def test_invalid_info_fails_the_episode(info: Callable[..., Any]) -> None:
    async def in_pool() -> Episode:
        with registered_env(_door(_info=info)) as env, EnvPool(ENV_ID, 1, "inline") as pool:
            return await play_episode(PoolSlot(pool, 0, Bare(env)), Knocker(), EpisodeSpec("door/train/1"))

    with registered_env(_door(_info=info)) as env:
        local = play(env, Knocker(), EpisodeSpec("door/train/1"))
    for episode in (local, asyncio.run(in_pool())):
        assert (episode.stop, episode.turns) == ("failed", ())
        broke = rf"InvalidFeedback: {ENV_ID} broke the environment contract|EnvFault: {ENV_ID} raised "
        assert re.match(broke, str(episode.error))
        assert Episode.from_json(episode.to_json()) == episode


def test_closed_pool_and_unknown_task_raise() -> None:
    async def in_closed_pool() -> None:
        with registered_env(Door) as env:
            pool = EnvPool(ENV_ID, 1, "inline")
            pool.close()
            async with aclosing(play_pool(pool, Opener(), [EpisodeSpec("door/train/1")], env=Bare(env))) as episodes:
                await anext(episodes)

    with pytest.raises(RuntimeError, match="This pool is closed"):
        asyncio.run(in_closed_pool())
    with registered_env(Door) as env, pytest.raises(KeyError, match="There is no task"):
        play(env, Knocker(), EpisodeSpec("door/train/99"))


def test_missing_dependency_ends_the_run() -> None:
    def start(*_: Any) -> Any:
        raise gymnasium.error.DependencyNotInstalled("install the door")

    with (
        registered_env(_door(_start=start)) as env,
        pytest.raises(gymnasium.error.DependencyNotInstalled, match="the door"),
    ):
        play(env, Knocker(), EpisodeSpec("door/train/1"))


# Serialization of episodes.


@pytest.mark.parametrize("field", ["score", "reward", "logprob"])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_episodes_with_non_finite_numbers_are_not_written(field: str, value: float) -> None:
    with registered_env(Door) as env:
        episode = play(env, Knocker(), EpisodeSpec("door/train/1"), horizon=1)
        assert text_env(env).task.id == episode.task_id
    (turn,) = episode.turns
    broken = {
        "score": replace(episode, score=value),
        "reward": replace(episode, turns=(replace(turn, reward=value),)),
        "logprob": replace(
            episode, turns=(replace(turn, reply=replace(turn.reply, sample=Sample((1,), (2,), (value,)))),)
        ),
    }[field]
    with pytest.raises(ValueError, match=r"The episode of door/train/1 in door/Door-v0 can't be written"):
        broken.to_json()
    token = "NaN" if math.isnan(value) else "-Infinity"
    line = replace(episode, turns=(replace(turn, reply=replace(turn.reply, sample=Sample((1,), (2,), (-1.0,)))),))
    assert Episode.from_json(line.to_json()) == line
    with pytest.raises(ValueError, match="a number"):
        Episode.from_json(line.to_json().replace("[-1.0]", f"[{token}]"))


def test_invalid_feedback_is_an_env_fault() -> None:
    assert issubclass(InvalidFeedback, EnvFault)


class Chatty(Bare):
    """A reply format with two mistakes."""

    def parse(self, reply: str) -> str | Malformed:
        return None if reply == "open" else reply[int(reply)]  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("knock", "raised ValueError: invalid literal for int() with base 10: 'knock' (test_feedback.py, line "),
        ("open", "returned None (NoneType) from `parse`, which must return the action as text (str), or Malformed("),
    ],
)
def test_fault_of_the_reply_format_names_it(reply: str, message: str) -> None:
    async def in_pool(wrapped: Chatty) -> Episode:
        with EnvPool(ENV_ID, 1, "inline") as pool:
            return await play_episode(PoolSlot(pool, 0, wrapped), policy, spec)

    policy, spec = FunctionPolicy(lambda context: reply), EpisodeSpec("door/train/1")
    with registered_env(Door) as env:
        for episode in (play(Chatty(env), policy, spec), asyncio.run(in_pool(Chatty(env)))):
            assert episode.stop == "failed"
            assert (episode.error or "").startswith(f"EnvFault: The reply format {__name__}:Chatty {message}")


def test_there_is_no_expert_after_a_failed_reset() -> None:
    def fail(*_: object) -> str:
        raise EnvFault("The hinges are gone.")

    door = _door()()
    for start in (Door._start, fail):
        type(door)._start = start  # type: ignore[method-assign]
        with suppress(EnvFault):
            door.reset(options={"task": "door/train/2"})
            assert door.oracle() == "knock"
    for ask in (door.oracle, door.oracle_thought, door.oracle_plan, door.scene):
        with pytest.raises(ResetNeeded, match="call reset"):
            ask()
