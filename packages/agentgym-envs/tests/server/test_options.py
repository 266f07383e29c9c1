"""Tests of environment options: clients may set none that name files, addresses or programs, or of a wrong type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import strange_worlds
from agentgym_envs.core.registration import WORLDS
from agentgym_envs.server.app import build_app
from agentgym_envs.server.settings import Settings
from app_client import Client, expect_error, expect_ok


@pytest.fixture(scope="module")
def client() -> Any:
    with Client(build_app(Settings())) as client:
        yield client


def create(client: Client, world: str, **options: Any) -> Any:
    return client.post("/v1/sessions", json={"world": f"agentgym/{world}-v0", "options": options})


@pytest.mark.parametrize(
    ("world", "options"),
    [
        ("TextCraft", {"depth": [1, 2], "distractors": 3, "max_episode_steps": 7, "render_mode": "ansi"}),
        ("BabyAI", {"levels": ["GoToRedBall", "PickupLoc"], "time_discount": True, "available_actions_in_text": False}),
        ("BabyAI", {"levels": "GoToRedBall", "render_mode": "rgb_array"}),
        ("SciWorld", {"tasks": ["boil", "1-2"], "variations": 2, "simplifications": ["easy"], "valid_actions": True}),
        ("SearchQA", {"top_k": 5}),
        ("WebArena", {"observe": "page", "max_chars": 600, "screenshot": True}),
    ],
)
def test_clients_may_set_safe_options(client: Client, world: str, options: dict[str, Any]) -> None:
    session = expect_ok(create(client, world, **options), 201)["id"]
    assert expect_ok(client.query(session, "tasks"))["total"] > 0


@pytest.mark.parametrize(
    ("world", "option", "value"),
    [
        ("SciWorld", "jvms", 64),
        ("SciWorld", "patience", 1e9),
        ("SearchQA", "dataset", "nq"),
        ("SearchQA", "data", "/etc"),
        ("SearchQA", "retriever", "http://10.0.0.1"),
        ("WebArena", "task_set", "/etc/passwd"),
        ("WebArena", "sites", {"shopping": "http://10.0.0.1"}),
        ("WebArena", "extra_hosts", ["10.0.0.1"]),
        ("WebArena", "accounts", {}),
        ("WebArena", "judge", "m@http://10.0.0.1/v1"),
        ("WebArena", "reset_hook", "rm"),
        ("WebArena", "executable_path", "/bin/sh"),
        ("TextCraft", "disable_env_checker", True),
        ("TextCraft", "additional_wrappers", []),
        ("TextCraft", "", 1),
    ],
)
def test_clients_may_not_set_other_options(client: Client, world: str, option: str, value: Any) -> None:
    message = expect_error(create(client, world, **{option: value}), 422, "invalid")
    assert f"can't set {option}" in message and "render_mode" in message


@pytest.mark.parametrize(
    ("world", "option"),
    [
        ("TextCraft", "depth"),
        ("TextCraft", "distractors"),
        ("BabyAI", "levels"),
        ("BabyAI", "time_discount"),
        ("BabyAI", "available_actions_in_text"),
        ("SciWorld", "tasks"),
        ("SciWorld", "variations"),
        ("SciWorld", "simplifications"),
        ("SciWorld", "valid_actions"),
        ("SearchQA", "top_k"),
        ("WebArena", "observe"),
        ("WebArena", "max_chars"),
        ("WebArena", "screenshot"),
        ("TextCraft", "max_episode_steps"),
        ("TextCraft", "render_mode"),
    ],
)
def test_value_of_a_wrong_type_is_refused_with_a_message(client: Client, world: str, option: str) -> None:
    for value in (-1, 1.5, "nonsense", [["boil"]], [None], {"boil": 1}):
        assert len(expect_error(create(client, world, **{option: value}), 422, "invalid")) > 20


def test_huge_number_of_distractors_means_all(client: Client) -> None:
    session = expect_ok(create(client, "TextCraft", distractors=2**62), 201)["id"]
    expect_ok(client.reset(session))


def test_client_options_are_parameters_of_the_environment(client: Client) -> None:
    import inspect

    from gymnasium.envs.registration import load_env_creator

    for world in WORLDS:
        env_class = load_env_creator(world.entry_point)
        assert env_class.client_options <= inspect.signature(env_class).parameters.keys(), world.id


def test_custom_environment_declares_its_client_options(serve: Any) -> None:
    client = serve()
    assert client.create_session(strange_worlds.QUICK, mood="raw")
    response = client.post("/v1/sessions", json={"world": strange_worlds.QUICK, "options": {"secret": "x"}})
    assert "max_episode_steps, mood, render_mode" in expect_error(response, 422, "invalid")
    response = client.post("/v1/sessions", json={"world": strange_worlds.QUICK, "options": {"mood": "sad"}})
    assert expect_error(response, 422, "invalid") == "mood is fine or raw, not 'sad'."


def test_server_sets_options_that_clients_may_not(tmp_path: Path) -> None:
    (tmp_path / "nq").mkdir()
    for split in ("train", "test"):
        (tmp_path / "nq" / f"{split}.jsonl").write_text('{"id": "0", "question": "who?", "golden_answers": ["me"]}\n')
    server_options = ("searchqa:dataset=nq", f"searchqa:data={tmp_path}", "agentgym/TextCraft-v0:depth=(2,2)")
    with Client(build_app(Settings(option=server_options))) as client:
        for world, options, total in (("SearchQA", {}, 1), ("TextCraft", {}, 57), ("TextCraft", {"depth": [1, 1]}, 34)):
            session = expect_ok(create(client, world, **options), 201)["id"]
            assert expect_ok(client.query(session, "tasks?split=test"))["total"] == total
        expect_error(create(client, "SearchQA", dataset="nq"), 422, "invalid")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("textcraft", "WORLD:KEY=VALUE"),
        ("nowhere:depth=3", "agentgym/TextCraft-v0"),
        ("textcraft:depth", "KEY=VALUE"),
        ("textcraft:colour=red", "colour"),
        ("textcraft:depth=(7,9)", "depth"),
    ],
)
def test_invalid_server_options_are_refused_at_the_start(option: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_app(Settings(option=(option,)))
