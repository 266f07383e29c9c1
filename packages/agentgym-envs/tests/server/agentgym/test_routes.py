"""Tests of AgentGym's protocol with stand-ins for its clients: complete episodes, and errors that clients must see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from agentgym_clients import CLIENTS, Client
from agentgym_envs import make
from agentgym_envs.agentgym_ids import WORLDS, task_id
from agentgym_envs.core.registry import text_env
from agentgym_envs.core.text_env import EnvFault, Malformed
from agentgym_envs.server.agentgym.environments import Environments
from agentgym_envs.server.agentgym.protocols import SearchQA, TextCraft, WebArena
from agentgym_envs.server.app import build_app
from agentgym_envs.server.errors import Refusal
from agentgym_envs.server.session_types import Session
from agentgym_envs.server.sessions import Sessions
from agentgym_envs.server.settings import Settings
from agentgym_envs.worlds.textcraft.env import TextCraft as TextCraftWorld
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return build_app(Settings())


@pytest.fixture(scope="module")
def http(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


def play(client: Client, task: str, index: int, max_turns: int = 100, **options: Any) -> list[float]:
    """Play an episode with the oracle of a local environment, check that both agree, and return the rewards."""
    local = make(WORLDS[task.partition("/")[0]], **options)
    try:
        first, _ = local.reset(options={"task": task})
        client.reset(index)
        assert client.observe().endswith(first)
        rewards: list[float] = []
        for _ in range(max_turns):
            action = text_env(local).oracle()
            observation, _, terminated, truncated, _ = local.step(action)
            turn = client.step(client.reply(action))
            assert turn.state == observation
            assert turn.done == (terminated or truncated)
            rewards.append(turn.reward)
            if turn.done:
                return rewards
    finally:
        local.close()
    pytest.fail(f"{task} did not end within {max_turns} turns")


def task_at(world: str, split: str, index: int) -> str:
    env = make(WORLDS[world])
    try:
        return text_env(env).tasks.split(split)[index].id  # pyright: ignore[reportArgumentType]
    finally:
        env.close()


def test_textcraft_is_played_by_index_within_a_split(http: TestClient) -> None:
    client = CLIENTS["textcraft"](http, "/compat/textcraft/test")
    assert client.observe().startswith("Crafting commands:")
    for index in (0, 17):
        rewards = play(client, task_at("textcraft", "test", index), index)
        assert rewards[-1] == sum(rewards) == 1
    assert client.step(client.reply("inventory")) == (client.observe(), 0, True)
    assert client.close() is True


def test_babyai_is_played_by_agentgyms_numbers(http: TestClient) -> None:
    client = CLIENTS["babyai"](http, "/compat/babyai")
    for number in (0, 16, 3, 459):
        scores = play(client, task_id(f"babyai_{number}"), number, time_discount=True)
        assert set(scores[:-1]) <= {0}
        assert 0.5 < scores[-1] < 1  # Minigrid's score, which decreases with the number of steps
    assert client.step(client.reply("turn left")) == (client.observe(), scores[-1], True)


def test_steps_after_the_end_have_no_reward(http: TestClient) -> None:
    client = CLIENTS["babyai"](http, "/compat/babyai/test")
    play(client, task_at("babyai", "test", 5), 5, time_discount=True)
    last = client.post("step", action="turn left")
    assert last["reward"] == 0 < last["score"] and last["done"] is True
    assert client.get("observation")["observation"] == last["observation"]


@pytest.mark.long
def test_sciworld_is_played_by_agentgyms_numbers(http: TestClient, requires_world: Callable[[str], None]) -> None:
    requires_world(WORLDS["sciworld"])
    client = CLIENTS["sciworld"](http, "/compat/sciworld")
    number = 4_633  # a short task
    scores = play(client, task_id(f"sciworld_{number}"), number)
    assert scores == sorted(scores) and scores[-1] == 100
    fields = client.reset(0)
    assert (fields["task_name"], fields["var_num"]) == ("boil", 0)
    assert fields["task_description"].startswith("Your task is to boil")
    client.close()


@pytest.mark.long
def test_searchqa_is_played_by_index_within_a_split(http: TestClient) -> None:
    client = CLIENTS["searchqa"](http, "/compat/searchqa/test")
    rewards = play(client, task_at("searchqa", "test", 3), 3)
    assert rewards[-1] == sum(rewards) == 1
    assert "<answer>" in client.observe()
    assert client.step("no action").reward == 0
    client.close()


@pytest.mark.long
def test_webarena_is_played_by_index_within_a_split(http: TestClient, requires_world: Callable[[str], None]) -> None:
    requires_world(WORLDS["webarena"])
    client = CLIENTS["webarena"](http, "/compat/webarena/train")
    rewards = play(client, task_at("webarena", "train", 0), 0)
    assert rewards[-1] == sum(rewards) == 1
    assert client.close() == {"closed": "closed"}


def test_environment_numbers_are_not_reused(http: TestClient) -> None:
    first, second = (CLIENTS["babyai"](http, "/compat/babyai") for _ in range(2))
    first.close()
    assert CLIENTS["babyai"](http, "/compat/babyai").env_id == second.env_id + 1 == first.env_id + 2
    with pytest.raises(AssertionError, match="There is no environment"):
        first.reset(0)


@pytest.mark.parametrize(
    ("base", "index", "message"),
    [
        ("/compat/babyai", 15, "OpenDoorsOrderN4Debug"),
        ("/compat/babyai", 40 * 512, "seed 512"),
        ("/compat/babyai/test", 10**6, "There is no task 1000000 in the split test"),
        ("/compat/babyai/dev", 4_759, "has 4,759"),
        ("/compat/textcraft/train", 10**6, "There is no task 1000000 in the split train"),
    ],
)
def test_missing_task_is_an_error(http: TestClient, base: str, index: int, message: str) -> None:
    client = CLIENTS[base.split("/")[2]](http, base)
    with pytest.raises(AssertionError, match=message):
        client.reset(index)
    assert http.post(f"{base}/reset", json={"id": client.env_id, "data_idx": index}).status_code == 404


def test_agentgyms_numbers_of_textcraft_are_refused_at_creation(app: FastAPI, http: TestClient) -> None:
    before = len(app.state.sessions)
    with pytest.raises(RuntimeError, match="/compat/textcraft/train"):
        CLIENTS["textcraft"](http, "/compat/textcraft")
    assert len(app.state.sessions) == before


def test_agentgyms_numbers_of_webarena_need_the_real_sites(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for site in ("SHOPPING", "SHOPPING_ADMIN", "REDDIT", "GITLAB", "MAP", "WIKIPEDIA", "HOMEPAGE"):
        monkeypatch.delenv(site, raising=False)
        monkeypatch.delenv(f"WA_{site}", raising=False)
    with pytest.raises(RuntimeError, match="No site URLs are configured"):
        CLIENTS["webarena"](http, "/compat/webarena")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/compat/alfworld/create", None, 404),
        ("POST", "/compat/babyai/valid/create", None, 404),
        ("POST", "/compat/babyai/reset", {"id": 99_999, "data_idx": 0}, 404),
        ("POST", "/compat/babyai/step", {"env_idx": 0, "action": "turn left"}, 422),
        ("POST", "/compat/babyai/step", {"id": -1, "action": "turn left"}, 422),
        ("POST", "/compat/babyai/step", {"id": "x", "action": "turn left"}, 422),
        ("GET", "/compat/babyai/observation", None, 422),
        ("GET", "/compat/babyai/observation?id=99999", None, 404),
        ("POST", "/compat/babyai/close", {"id": 99_999}, 404),
    ],
)
def test_invalid_requests_have_error_statuses(http: TestClient, method: str, path: str, body: Any, status: int) -> None:
    response = http.request(method, path, json=body)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"type", "message"}


def test_reset_without_a_number_is_refused(http: TestClient) -> None:
    environment = http.post("/compat/babyai/create").json()["id"]
    assert http.post("/compat/babyai/reset", json={"id": environment}).status_code == 422
    http.post("/compat/babyai/close", json={"id": environment})


def test_step_and_observation_need_a_reset(http: TestClient) -> None:
    client = CLIENTS["babyai"](http, "/compat/babyai")
    for response in (
        http.post("/compat/babyai/step", json={"id": client.env_id, "action": "turn left"}),
        http.get(f"/compat/babyai/observation?id={client.env_id}"),
    ):
        assert (response.status_code, response.json()["error"]["type"]) == (409, "reset_needed")
    response = http.post("/compat/babyai/step", json={"id": client.env_id})
    assert response.status_code == 422 and "action" in response.json()["error"]["message"]


def test_environment_fault_is_an_error_and_not_a_score(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client = CLIENTS["textcraft"](http, "/compat/textcraft/train")

    def fail(self: object, action: str) -> None:
        raise EnvFault("The crafting table burned down.")

    monkeypatch.setattr(TextCraftWorld, "_act", fail)
    with pytest.raises(AssertionError, match="burned down"):
        client.step(client.reply("inventory"))
    assert http.post("/compat/textcraft/step", json={"id": client.env_id, "action": "inventory"}).status_code == 502


def test_base_urls_respond_with_ok(http: TestClient) -> None:
    assert http.get("/compat/sciworld/").json() == http.get("/compat/sciworld/train/").json() == "ok"
    assert not [path for path in http.get("/openapi.json").json()["paths"] if "compat" in path]


def test_expired_lease_leaves_no_session() -> None:
    ticks = count()

    async def scenario() -> tuple[str, int]:
        sessions = Sessions(Settings(lease=100.0), clock=lambda: 1_000.0 * next(ticks))
        await sessions.open()
        environments = Environments(sessions, "textcraft", TextCraft().options)
        environment = await environments.create("train")
        with pytest.raises(Refusal) as refusal:
            environments.get(environment.number)
        remaining = len(sessions)
        await sessions.shut(1.0)
        return refusal.value.kind, remaining

    assert asyncio.run(scenario()) == ("unknown_session", 0)


def test_a_reset_with_other_options_works_on_a_full_server() -> None:
    async def scenario() -> tuple[int, int]:
        sessions = Sessions(Settings(max_sessions=1))
        await sessions.open()
        environments = Environments(
            sessions, "textcraft", lambda numbering, task: {"distractors": 1 if numbering == "test" else 2}
        )
        environment = await environments.create("train")
        await environments.reset(environment, "test", 0)
        remaining = len(sessions), environment.options["distractors"]
        await sessions.shut(1.0)
        return remaining

    assert asyncio.run(scenario()) == (1, 1)


def test_concurrent_resets_leave_one_session() -> None:
    """A reset in another numbering may need an environment with other options."""

    class SlowSessions(Sessions):
        async def create(self, *arguments: Any, **options: Any) -> Session:
            session = await super().create(*arguments, **options)
            await asyncio.sleep(0)  # as for an environment in a thread or a process
            return session

    async def scenario() -> int:
        sessions = SlowSessions(Settings())
        await sessions.open()
        environments = Environments(
            sessions, "textcraft", lambda numbering, task: {"distractors": 1 if numbering == "test" else 2}
        )
        environment = await environments.create("train")
        await asyncio.gather(*[environments.reset(environment, "test", index) for index in range(3)])
        remaining = len(sessions)
        await sessions.shut(1.0)
        return remaining

    assert asyncio.run(scenario()) == 1


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("<think>hm</think><search> a </search>", "<search> a </search>"),
        ("<answer>b</answer> <search>a</search>", "<answer>b</answer>"),
        ("<search>a <answer>b</answer>", "<answer>b</answer>"),
        ("</search><search>a", "</search><search>a"),
        ("nothing", "nothing"),
    ],
)
def test_searchqa_action_is_the_first_tag(reply: str, action: str) -> None:
    assert SearchQA().action(reply) == action


def test_webarena_action_is_between_code_fences() -> None:
    assert WebArena().action("First ```click [3]``` and then ```stop [x]```") == "click [3]"
    for reply in ("click [3]", "```click [3]", ""):
        malformed = WebArena().action(reply)
        assert isinstance(malformed, Malformed) and malformed == reply and "```" in malformed.hint


@given(st.lists(st.sampled_from(["<search>", "</search>", "<answer>", "</answer>", "```", "a", " "]), max_size=12))
def test_every_reply_contains_its_action(parts: list[str]) -> None:
    reply = "".join(parts)
    assert SearchQA().action(reply) in reply
    assert WebArena().action(reply) in reply


def test_each_kind_of_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with TestClient(build_app(Settings())) as http:
        for number in (60_000, 60_040):
            environment = http.post("/compat/babyai/create").json()["id"]
            response = http.post("/compat/babyai/reset", json={"id": environment, "data_idx": number})
            assert response.status_code == 404
        for name in ("chess%1B", "chess%1B", "go"):
            assert http.post(f"/compat/{name}/create").status_code == 404
        assert http.post("/compat/babyai/reset", json={"id": "x"}).status_code == 422
        assert http.post("/v1/sessions", json={}).status_code == 422  # not logged, since its clients read errors
    first, *others = [record.getMessage() for record in caplog.records if record.name == "agentgym_envs.server.errors"]
    assert first.startswith("/compat/babyai/reset answered 404: AgentGym's task 'babyai_60000' is seed 1500 of ")
    assert [message.partition(":")[0] for message in others] == [
        "/compat/chess?/create answered 404",
        "/compat/go/create answered 404",
        "/compat/babyai/reset answered 422",
    ]
