"""Tests of custom and audited tasks in the environment, on sites given by URL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.login import FORMS
from dev_packages import require_packages
from login_pages import LoginPages, LoginSite
from pages_server import Page, PagesServer

Env = gymnasium.Env[str, str]
Make = Callable[..., Env]
DONE = '{"task_type": "NAVIGATE", "status": "SUCCESS", "retrieved_data": null, "error_details": null}'


def task(task_id: int, site: str, evaluation: dict[str, Any], **fields: Any) -> dict[str, Any]:
    start = f"__{site.upper()}__/"
    return {"sites": [site], "task_id": task_id, "start_url": start, "intent": "?", "eval": evaluation, **fields}


ALL_PARTS = {
    "eval_types": ["string_match", "url_match", "program_html"],
    "reference_answers": {"must_include": ["green"]},
    "reference_url": "__SHOPPING__/tea",
    "program_html": [
        {
            "url": "__SHOPPING__/tea",
            "locator": "document.querySelector('h1').innerText",
            "required_contents": {"exact_match": "Green tea"},
        }
    ],
}
HELLO = {
    "eval_types": ["program_html"],
    "program_html": [{"url": "last", "locator": "", "required_contents": {"must_include": ["hello"]}}],
}
TASKS = [
    task(0, "shopping", ALL_PARTS),
    task(1, "reddit", HELLO, require_login=True, require_reset=True),
    task(2, "shopping", {"eval_types": ["string_match"], "reference_answers": {"fuzzy_match": ["a pair"]}}),
]


@pytest.fixture
def forum() -> Iterator[tuple[LoginSite, str]]:
    """A site with a login, and its address."""
    form = FORMS["reddit"]
    site = LoginSite(form.login, form.check, form.username, form.password, {"me": "mine"})
    with LoginPages({}) as pages:
        pages.sites[pages.address] = site
        yield site, pages.address


@pytest.fixture
def make(
    requires_browser: None,
    server: PagesServer,
    forum: tuple[LoginSite, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Make]:
    """A function that creates an environment with the tasks above."""
    monkeypatch.setattr("agentgym_envs.worlds.webarena.browser.login.cache_folder", lambda *parts: tmp_path)
    server.pages |= {"/": "<h1>Shop</h1><a href=/tea>Tea</a>", "/tea": "<h1>Green tea</h1>", "/reset": "done"}
    (tmp_path / "mine.json").write_text(json.dumps(TASKS))
    envs: list[Env] = []

    def make(**options: Any) -> Env:
        sites = f"shopping=http://{server.address},reddit=http://{forum[1]}"
        arguments = {
            "task_set": tmp_path / "mine.json",
            "sites": sites,
            "accounts": {"reddit": ("me", "mine")},
            **options,
        }
        envs.append(gymnasium.make("agentgym/WebArena-v0", **arguments))
        return envs[-1]

    yield make
    for env in envs:
        env.close()


def start(env: Env, task_id: int) -> str:
    return env.reset(options={"task": f"webarena/mine/{task_id}"})[0]


@pytest.mark.long
def test_custom_task_is_scored(make: Make, server: PagesServer) -> None:
    env = make()
    assert "heading 'Shop'" in start(env, 0)
    env.step(f"goto [http://{server.address}/tea]")
    _, reward, terminated, _, info = env.step("stop [it is green]")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    start(env, 0)
    _, reward, terminated, _, info = env.step("stop [it is green]")
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert info["raw"]["parts"] == {"string_match": 1.0, "url_match": 0.0, "program_html": 1.0}


@pytest.mark.long
def test_sites_are_reset_and_logged_in_to(make: Make, server: PagesServer, forum: tuple[LoginSite, str]) -> None:
    env = make(reset_hook=f"http://{server.address}/reset")
    assert "heading 'Hello'" in start(env, 1)
    assert env.step("stop []")[1] == 1.0
    start(env, 1)
    assert [json.loads(request.body) for request in server.requests if request.path == "/reset"] == [
        {"sites": ["reddit"]}
    ] * 2
    assert forum[0].requests.count("POST /login") == 1


@pytest.mark.long
def test_model_judges_fuzzy_matches(make: Make, server: PagesServer) -> None:
    server.pages["/v1/chat/completions"] = Page(json.dumps({"choices": [{"message": {"content": "Correct"}}]}))
    env = make(judge=f"a-model@http://{server.address}/v1")
    start(env, 2)
    assert env.step("stop [two]")[1] == 1.0
    server.pages["/v1/chat/completions"] = Page("no such model", status=404)
    start(env, 2)
    with pytest.raises(EnvFault, match="no such model"):
        env.step("stop [two]")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Transitional processing is deprecated:DeprecationWarning")
def test_audited_task_is_scored_by_its_recording(make: Make, server: PagesServer) -> None:
    require_packages("webarena_verified")
    form = FORMS["gitlab"]
    site = LoginSite(form.login, form.check, form.username, form.password, {"me": "mine"})
    with LoginPages({}) as pages:
        pages.sites[pages.address] = site
        url = f"http://{pages.address}"
        env = make(task_set="webarena-verified", sites={"gitlab": url}, accounts={"gitlab": ("me", "mine")})
        scores: list[float] = []
        for page in ("todos", "issues"):
            env.reset(options={"task": "webarena/webarena-verified/44"})
            env.step(f"goto [{url}/dashboard/{page}]")
            scores.append(float(env.step(f"stop [{DONE}]")[1]))
    assert scores == [1.0, 0.0]
