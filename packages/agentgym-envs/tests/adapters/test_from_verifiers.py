"""Tests of verifiers' environments as environments: `uv run --with verifiers pytest -m long -k from_verifiers`."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from agentgym_envs import EnvFault, make, text_env
from patience import PATIENCE

if find_spec("verifiers") is None:
    pytest.skip("verifiers is missing: uv run --with verifiers pytest -k from_verifiers", allow_module_level=True)

pytestmark = pytest.mark.long
GUESSING = "verifiers:verifiers-guessing"
SETTINGS = {"taskset": {"limit": 30}}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes of verifiers' tools import the tasksets of these tests, which are no package."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


def test_an_environment_is_played_in_turns_and_its_rubric_is_paid_at_the_end() -> None:
    env = make(GUESSING, settings=SETTINGS, timeout=PATIENCE)
    tasks = text_env(env).tasks
    assert [len(tasks.train) + len(tasks.dev), len(tasks.test)] == [27, 3]
    assert [task.payload["row"] for task in tasks.test] == [9, 19, 29]
    observation, info = env.reset(options={"task": tasks.test[1].id})
    assert observation == "Reply with a number.\n\nGuess a number from 1 to 30."
    assert info["task_id"] == "verifiers-guessing/test/19"
    assert env.step("7")[:4] == ("higher", 0.0, False, False)
    assert env.step("25")[:4] == ("lower", 0.0, False, False)
    _, reward, terminated, _, info = env.step("20")
    assert (reward, terminated, info["success"], info["raw"]) == (1.0, True, True, {"return": 1.0})
    env.reset(options={"task": tasks.train[0].id})
    env.step("12")
    assert env.reset(options={"task": tasks.train[1].id})[0] == observation  # the episode before is given up
    _, reward, terminated, _, info = env.step("no idea")
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    env.close()
    env.close()


def test_failures_in_verifiers_are_faults() -> None:
    env = make(GUESSING, settings=SETTINGS, timeout=PATIENCE)
    first = text_env(env).tasks.train.ids[0]
    env.reset(options={"task": first})
    with pytest.raises(EnvFault, match=r"TaskError: .*the judge broke"):
        env.step("break")
    env.reset(options={"task": first})
    assert env.step("1")[4]["success"] is True
    env.close()


def test_an_episode_without_a_request_is_a_fault_at_once() -> None:
    env = make(GUESSING, settings={**SETTINGS, "silent": 1}, timeout=PATIENCE)
    silent, other = text_env(env).tasks.train.ids[:2]
    with pytest.raises(EnvFault, match="was over before it called the agent's model"):
        env.reset(options={"task": silent})
    env.reset(options={"task": other})
    assert env.step("2")[4]["success"] is True
    env.close()


def test_the_tools_of_a_task_are_called_by_json() -> None:
    env = make("verifiers:verifiers-stock", high=2.0, timeout=PATIENCE)
    (task,) = text_env(env).tasks.test
    observation, _ = env.reset(options={"task": task.id})
    assert observation.startswith("How many screws are there?\n\nYour tools:\n")
    assert '"name": "store_count"' in observation
    assert env.step(json.dumps({"name": "store_count", "arguments": {"item": "screws"}}))[:2] == ("7", 0.0)
    _, reward, terminated, _, info = env.step("There are 7 screws.")
    assert (reward, terminated, info["success"], info["raw"]) == (1.0, True, True, {"return": 2.0})
    env.close()


def test_wrong_names_settings_and_agents_are_refused() -> None:
    with pytest.raises(ValueError, match=r"verifiers:verifiers-none can't be loaded: .*verifiers_none"):
        make("verifiers:verifiers-none")
    with pytest.raises(ValueError, match=r"can't be loaded: .*limits"):
        make(GUESSING, settings={"taskset": {"limits": 5}})
    with pytest.raises(ValueError, match=r"no agent pitcher. Its agents: player"):
        make(GUESSING, seat="pitcher")
    two = {"id": "user-sim"}
    with pytest.raises(ValueError, match="the agents assistant, user, and one can be played"):
        make(GUESSING, settings=two)
    user = {"model": "any", "client": {"type": "eval", "base_url": "http://127.0.0.1:9/v1", "api_key_var": "NONE"}}
    make(GUESSING, settings={**two, "user": user}).close()
