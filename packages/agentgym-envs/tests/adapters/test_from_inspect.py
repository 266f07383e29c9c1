"""Tests of Inspect's evaluations as environments: `uv run --with inspect-evals pytest -m long -k from_inspect`.

The package inspect-evals brings tau2-bench's domains with their data.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import EnvFault, make, text_env
from patience import PATIENCE

if find_spec("inspect_ai") is None:
    pytest.skip("inspect-ai is missing: uv run --with inspect-evals pytest -k from_inspect", allow_module_level=True)

# Inspect calls deprecated functions of its dependencies, and leaves files of its logs to the garbage collector.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]
CAPITALS = "inspect:inspect_tasks:capitals"
AIRLINE = "inspect:inspect_evals.tau2:tau2_airline"


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def test_an_evaluation_is_played_with_its_tools_and_scored() -> None:
    env = make(CAPITALS, timeout=PATIENCE)
    tasks = text_env(env).tasks
    assert (tasks.train.ids, tasks.test.ids) == (
        ["inspect_tasks-capitals/train/1", "inspect_tasks-capitals/train/2"],
        ["inspect_tasks-capitals/test/3"],
    )
    observation, info = env.reset(options={"task": tasks.test.ids[0]})
    assert observation.startswith("The capital of Ghana?\n\nYour tools:\n")
    assert '"name": "capital"' in observation
    assert env.step(call("capital", country="Ghana"))[:2] == ("Accra", 0.0)
    observation, reward, terminated, _, info = env.step("It is Accra.")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    assert observation == "The conversation is over. The answer is Accra."
    env.reset(options={"task": tasks.train.ids[0]})
    env.reset(options={"task": tasks.train.ids[0]})  # the episode before is given up
    assert env.step("Bergen")[4]["success"] is False
    env.reset(options={"task": tasks.train.ids[0]})
    with pytest.raises(EnvFault, match="the scorer broke"):
        env.step("break")
    env.close()
    env.close()


def test_samples_whose_ids_differ_in_signs_are_tasks_of_their_own() -> None:
    env = make("inspect:inspect_tasks:named", timeout=PATIENCE)
    tasks = text_env(env).tasks
    prefix = "inspect_tasks-named/train/a-b"
    samples = {task.id: task.payload["sample"] for task in tasks if task.split != "test"}
    assert samples.keys() == {prefix, f"{prefix}-2", f"{prefix}-3"}
    assert set(samples.values()) == {"a/b", "a-b", "a b"}
    for task, sample in samples.items():
        assert env.reset(options={"task": task})[0].startswith(f"What is {sample}?")
    env.close()


def test_wrong_names_settings_and_roles_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must name a task of Inspect as inspect:MODULE:TASK"):
        make("inspect:inspect_tasks:capital_letters")
    with pytest.raises(ValueError, match=r"can't be created: .*sorted"):
        make(CAPITALS, settings={"sorted": True})
    with pytest.raises(ValueError, match="script of a role can't be read"):
        make(CAPITALS, roles={"user": f"script:{tmp_path / 'none.txt'}"})
    with pytest.raises(ValueError, match="model nobody/any of a role can't be opened"):
        make(CAPITALS, roles={"user": "nobody/any"})


@pytest.mark.parametrize("works", [True, False])
def test_tau2_bench_is_played_with_a_user_from_a_script(works: bool, tmp_path: Path) -> None:
    if find_spec("inspect_evals") is None:
        pytest.skip("inspect-evals is missing")
    script = tmp_path / "user.txt"
    script.write_text("I have a request.\nThat was all. ###STOP###\n", encoding="utf-8")
    env = make(AIRLINE, roles={"user": f"script:{script}"}, timeout=PATIENCE)
    inner: Any = text_env(env)
    assert len(inner.tasks) > 40
    criteria = {sample.id: sample.metadata["task"]["evaluation_criteria"] for sample in inner.samples}
    task = next(
        task
        for task in inner.tasks.train
        if "cancel_reservation" in {action["name"] for action in criteria[task.payload["sample"]]["actions"]}
    )
    wanted = criteria[task.payload["sample"]]
    observation, _ = env.reset(options={"task": task.id})
    assert "You are a customer service agent" in observation
    assert "I have a request." in observation
    assert '"name": "book_reservation"' in observation
    for action in wanted["actions"] if works else ():
        assert env.step(call(action["name"], **action["arguments"]))[2] is False
    _, reward, terminated, _, info = env.step("Done: " + ", ".join(wanted["communicate_info"] or []))
    assert (reward, terminated, info["success"]) == (float(works), True, works)
    env.close()
