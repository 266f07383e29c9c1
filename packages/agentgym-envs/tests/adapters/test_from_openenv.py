"""Tests of OpenEnv servers as environments, with the real package, which takes long to import."""

from __future__ import annotations

from typing import Any

import pytest
from agentgym_envs import EnvFault, make, text_env
from dev_packages import require_packages
from patience import PATIENCE
from uvicorn_threads import served

require_packages("openenv")
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

pytestmark = pytest.mark.long


class Sum(Action):
    left: int
    right: int


class Total(Observation):
    total: int = 0
    label: str = ""


class Adder(Environment[Sum, Total, State]):
    """Pays 2 for a sum above 9, which ends the episode, and breaks at negative numbers."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Total:
        return Total(total=seed or 0, label="sums")

    def step(self, action: Sum, timeout_s: float | None = None, **_: Any) -> Total:
        if action.left < 0:
            raise OSError("the adder jammed")
        total = action.left + action.right
        return Total(total=total, label="sums", done=total > 9, reward=2.0 * (total > 9))

    @property
    def state(self) -> State:
        return State()


def test_a_text_environment_on_a_server_is_played_to_its_end() -> None:
    from agentgym_envs.adapters.openenv import openenv_app

    with served(openenv_app("textcraft")) as url:
        env, local = make(f"openenv:{url}", timeout=PATIENCE), make("agentgym/TextCraft-v0")
        assert "crafting" in text_env(env).instructions
        task = text_env(env).tasks.train[0]
        first, info = env.reset(options={"task": task.id})
        assert first == local.reset(seed=task.payload["seed"])[0]
        assert info["task_id"] == task.id
        assert env.step("fly")[4]["valid"] is False
        done, total = False, 0.0
        while not done:
            action = text_env(local).oracle()
            local.step(action)
            _, reward, done, _, info = env.step(action)
            total += float(reward)
        assert (total, info["score"], info["success"]) == (1.0, 1.0, True)
        env.close()
        env.close()
        local.close()


def test_actions_with_several_fields_are_json_and_failures_are_faults() -> None:
    with served(create_fastapi_app(Adder, Sum, Total)) as url:
        env = make(f"openenv:{url}", high=2.0, timeout=PATIENCE)
        assert '"left"' in text_env(env).instructions
        task = text_env(env).tasks.train[0]
        first, _ = env.reset(options={"task": task.id})
        assert f'"total": {task.payload["seed"]}' in first
        assert '"label": "sums"' in first
        assert env.step("1 + 2")[4]["valid"] is False
        assert '"total": 3' in env.step('{"left": 1, "right": 2}')[0]
        with pytest.raises(EnvFault, match="failed"):
            env.step('{"left": -1, "right": 2}')
        env.reset(options={"task": task.id})
        _, reward, terminated, _, info = env.step('{"left": 5, "right": 5}')
        assert (reward, terminated, info["success"]) == (1.0, True, True)
        env.close()
        labelled = make(f"openenv:{url}", observation="label", timeout=PATIENCE)
        assert labelled.reset()[0] == "sums"
        labelled.close()
        wrong = make(f"openenv:{url}", observation="picture", timeout=PATIENCE)
        with pytest.raises(EnvFault, match="no field picture"):
            wrong.reset()
        wrong.close()


@pytest.mark.parametrize(
    "fields",
    ['"left": "north"', '"left": null', '"left": 1.5', '"left": 1e999', '"up": 1, "left": 1', '"left": "\\u0000"'],
)
def test_fields_that_the_server_refuses_are_an_invalid_action(fields: str) -> None:
    with served(create_fastapi_app(Adder, Sum, Total)) as url:
        env = make(f"openenv:{url}", high=2.0, timeout=PATIENCE)
        env.reset()
        observation, reward, terminated, _, info = env.step(f'{{"right": 2, {fields}}}')
        assert "is not an action here" in observation and '"left"' in observation
        assert (reward, terminated, info["valid"]) == (0.0, False, False)
        assert '"total": 3' in env.step('{"left": 1, "right": 2}')[0]  # the episode goes on
        with pytest.raises(EnvFault, match="EXECUTION_ERROR"):
            env.step('{"left": -1, "right": 2}')
        env.close()


def test_a_reset_that_the_server_refuses_is_a_fault() -> None:
    class Broken(Adder):
        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Total:
            return Total.model_validate({"total": "many"})

    with served(create_fastapi_app(Broken, Sum, Total)) as url:
        env = make(f"openenv:{url}", timeout=PATIENCE)
        with pytest.raises(EnvFault, match="VALIDATION_ERROR"):
            env.reset()
        env.close()


def test_the_splits_of_a_server_stay_if_it_moves() -> None:
    tasks = [text_env(make(f"openenv:http://127.0.0.1:{port}", train=200)).tasks for port in (8000, 8001)]
    dev = [[task.payload["seed"] for task in each.dev] for each in tasks]
    assert dev[0] == dev[1]
    assert 5 < len(dev[0]) < 50


def test_servers_that_are_gone_and_wrong_sources_are_named() -> None:
    gone = make("openenv:http://127.0.0.1:9", timeout=PATIENCE)
    with pytest.raises(EnvFault, match=r"openenv:http://127\.0\.0\.1:9"):
        gone.reset()
    gone.close()
    with pytest.raises(ValueError, match="URL of a server"):
        make("openenv:echo")
