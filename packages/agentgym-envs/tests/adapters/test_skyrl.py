"""Tests of the SkyRL-gym adapter, created through SkyRL-gym's own registry."""

from __future__ import annotations

from typing import Any

import pytest
from dev_packages import require_packages

require_packages("skyrl_gym")

import skyrl_gym
from agentgym_envs.adapters.skyrl import SkyRLWorld

STAIRS = "textcraft/test/red_sandstone_stairs"


def test_registered_environment_plays_an_episode() -> None:
    skyrl_gym.register(id="agentgym-test", entry_point="agentgym_envs.adapters.skyrl:SkyRLWorld")
    row = {"world": "textcraft", "task": STAIRS, "max_turns": 4, "data_source": "SkyRL's own"}
    env = skyrl_gym.make("agentgym-test", env_config={"agent": "react"}, extras=row)
    (system, user), info = env.init([])
    assert "Action:" in system["content"]
    assert "red sandstone stairs" in user["content"]
    assert info["task_id"] == STAIRS
    step = env.step("Action: get 24 red sand")
    assert (step["observations"], step["done"]) == ([{"role": "user", "content": "Got 24 red sand"}], False)
    assert env.step("Let me think.")["metadata"]["valid"] is False
    env.step("Action: craft 6 red sandstone using 24 red sand")
    last = env.step("Action: craft 4 red sandstone stairs using 6 red sandstone")
    assert (last["observations"], last["reward"], last["done"]) == ([], 1.0, True)
    assert env.get_metrics() == {"score": 1.0, "success": 1.0, "turns": 4}
    env.close()
    env.close()


def test_conversation_starts_with_the_prompt_of_the_row() -> None:
    env = SkyRLWorld({}, {"world": "textcraft", "agent": "function-call", "options": {"depth": (1, 1)}, "max_turns": 1})
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]
    conversation, _ = env.init(prompt)
    assert conversation[:2] == prompt
    assert len(conversation) == 3
    assert '"inventory"' in env.init([])[0][0]["content"]
    assert env.step('{"function_name": "inventory", "arguments": {}}')["done"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "must have a 'world'"),
        ({"world": "textcraft", "agent": "react+plan"}, "habits. Use react, not react\\+plan"),
        ({"world": "textkraft"}, "no environment 'textkraft'"),
    ],
)
def test_invalid_rows_are_rejected(row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SkyRLWorld({}, row)
