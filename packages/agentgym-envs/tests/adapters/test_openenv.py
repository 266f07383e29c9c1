"""Tests of the OpenEnv adapter with OpenEnv's own server, which takes long to import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from agentgym_envs import Malformed
from dev_packages import require_packages
from fastapi.testclient import TestClient

require_packages("openenv")

pytestmark = pytest.mark.long

STAIRS = "textcraft/test/red_sandstone_stairs"


def test_episodes_are_played_over_a_websocket() -> None:
    from agentgym_envs.adapters.openenv import openenv_app

    with (
        TestClient(openenv_app("textcraft", max_episode_steps=2)) as client,
        client.websocket_connect("/ws") as first,
        client.websocket_connect("/ws") as second,
    ):

        def request(socket: Any, kind: str, **data: Any) -> Mapping[str, Any]:
            socket.send_json({"type": kind} | ({"data": data} if data else {}))
            return socket.receive_json()["data"]

        assert request(first, "reset", task=STAIRS)["observation"]["task_id"] == STAIRS
        assert request(second, "reset", split="test", seed=1)["observation"]["task_id"].startswith("textcraft/test/")
        result = request(first, "step", text="get 24 red sand")
        assert (result["observation"]["text"], result["reward"], result["done"]) == ("Got 24 red sand", 0.0, False)
        result = request(first, "step", text="fly")
        observation = result["observation"]
        assert (observation["valid"], observation["truncated"], result["done"]) == (False, True, True)
        again = request(first, "step", text="get 24 red sand")
        assert again == result | {"reward": 0.0}
        assert request(first, "state") == {"episode_id": STAIRS, "step_count": 2}
        assert request(second, "state")["step_count"] == 0
        assert "no task 'nowhere'" in request(first, "reset", task="nowhere")["message"]
        assert "takes seed, episode_id, task and split" in request(first, "reset", taks=STAIRS)["message"]


def test_environment_has_metadata_and_plays() -> None:
    from agentgym_envs.adapters.openenv import OpenEnvWorld, TextAction, openenv_app

    with pytest.raises(ValueError, match="no environment 'nothing'"):
        openenv_app("nothing")
    world = OpenEnvWorld("textcraft")
    assert world.get_metadata().name == "agentgym/TextCraft-v0"
    assert "crafting" in world.get_metadata().description
    assert world.reset(task=STAIRS).reward == 0.0
    assert world.step(TextAction(text=Malformed("get 24 red sand", "hint"))).text == "Got 24 red sand"
