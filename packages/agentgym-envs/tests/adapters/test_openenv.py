"""OpenEnv's own server plays our worlds. Its import takes as long as many tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from agentgym_envs import Malformed
from dev_packages import need
from fastapi.testclient import TestClient

need("openenv")

pytestmark = pytest.mark.long

STAIRS = "textcraft/test/red_sandstone_stairs"


def test_openenv_plays_it_over_a_socket() -> None:
    from agentgym_envs.adapters.openenv import openenv_app

    with (
        TestClient(openenv_app("textcraft", max_episode_steps=2)) as client,
        client.websocket_connect("/ws") as one,
        client.websocket_connect("/ws") as other,
    ):

        def ask(socket: Any, kind: str, **data: Any) -> Mapping[str, Any]:
            socket.send_json({"type": kind} | ({"data": data} if data else {}))
            return socket.receive_json()["data"]

        assert ask(one, "reset", task=STAIRS)["observation"]["task_id"] == STAIRS
        assert ask(other, "reset", split="test", seed=1)["observation"]["task_id"].startswith("textcraft/test/")
        seen = ask(one, "step", text="get 24 red sand")
        assert (seen["observation"]["text"], seen["reward"], seen["done"]) == ("Got 24 red sand", 0.0, False)
        seen = ask(one, "step", text="fly")
        assert (seen["observation"]["valid"], seen["observation"]["truncated"], seen["done"]) == (False, True, True)
        assert ask(one, "state") == {"episode_id": STAIRS, "step_count": 2}
        assert ask(other, "state")["step_count"] == 0
        assert "no task 'nowhere'" in ask(one, "reset", task="nowhere")["message"]
        assert "takes seed, episode_id, task and split" in ask(one, "reset", taks=STAIRS)["message"]


def test_openenv_tells_what_the_world_is() -> None:
    from agentgym_envs.adapters.openenv import OpenEnvWorld, TextAction, openenv_app

    with pytest.raises(ValueError, match="no environment 'nothing'"):
        openenv_app("nothing")
    world = OpenEnvWorld("textcraft")
    assert world.get_metadata().name == "agentgym/TextCraft-v0"
    assert "crafting" in world.get_metadata().description
    assert world.reset(task=STAIRS).reward == 0.0
    assert world.step(TextAction(text=Malformed("get 24 red sand", "hint"))).text == "Got 24 red sand"
