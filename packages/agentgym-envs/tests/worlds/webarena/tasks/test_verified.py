"""Tests of the task sets of the package `webarena-verified`: original and audited tasks, and their evaluation."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.core.tasks import Task
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.browser import Browser
from agentgym_envs.worlds.webarena.browser.session import Session
from agentgym_envs.worlds.webarena.browser.site_urls import Sites, needed
from agentgym_envs.worlds.webarena.evaluation import Verdict, needs_judge
from agentgym_envs.worlds.webarena.evaluation.locators import parse_call
from agentgym_envs.worlds.webarena.evaluation.parts import PARTS
from agentgym_envs.worlds.webarena.tasks import verified
from agentgym_envs.worlds.webarena.tasks.task_files import start_urls
from agentgym_envs.worlds.webarena.tasks.verified import (
    VERIFIED_SETS,
    evaluate_verified,
    is_verified,
    verified_tasks,
)
from gymnasium.error import DependencyNotInstalled
from pages_server import PagesServer

# The package uses a deprecated option of `idna`.
pytestmark = pytest.mark.filterwarnings("ignore:Transitional processing is deprecated:DeprecationWarning")

Run = Callable[[Coroutine[Any, Any, Any]], Any]
SITES = Sites(
    shopping="http://shop.example",
    shopping_admin="http://shop.example/admin",
    reddit="http://wiki.example",
    gitlab="http://shop.example",
)


def tasks_of(name: str) -> tuple[Task, ...]:
    try:
        return verified_tasks(name)
    except DependencyNotInstalled as missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(missing))


@pytest.fixture(scope="module")
def original() -> tuple[Task, ...]:
    return tasks_of("webarena")


@pytest.fixture(scope="module")
def audited() -> dict[int, dict[str, Any]]:
    return {task.payload["task_id"]: dict(task.payload) for task in tasks_of("webarena-verified")}


@pytest.mark.parametrize(("name", "number"), list(zip(VERIFIED_SETS, (812, 812, 258), strict=True)))
def test_sets_are_complete(name: str, number: int) -> None:
    tasks = tasks_of(name)
    assert len({task.id for task in tasks}) == number
    assert all(task.id == f"webarena/{name}/{task.payload['task_id']}" for task in tasks)
    assert all(task.difficulty >= 1 and start_urls(task.payload) for task in tasks)
    assert {task.category for task in tasks} >= {"shopping", "shopping_admin", "reddit", "gitlab", "cross-site"}
    assert all(is_verified(task.payload) == (name != "webarena") for task in tasks)
    json.dumps([dict(task.payload) for task in tasks])


def test_hard_set_is_a_subset_of_the_audited_set(audited: dict[int, dict[str, Any]]) -> None:
    hard = [task.payload for task in tasks_of("webarena-verified-hard")]
    assert all(audited[task["task_id"]] == task for task in hard)


def test_unknown_set_is_rejected() -> None:
    with pytest.raises(ValueError, match="has no set 'webarena-lite'; it has webarena, webarena-verified"):
        verified_tasks("webarena-lite")


def test_missing_package_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("webarena_verified.api", "webarena_verified.utils"):
        monkeypatch.setitem(sys.modules, module, None)
    verified._package.cache_clear()
    for name in VERIFIED_SETS:
        with pytest.raises(DependencyNotInstalled, match="--package agentgym-envs --extra webarena-verified"):
            verified_tasks(name)


# WebArena's original tasks.


def test_evaluations_of_the_original_tasks(original: tuple[Task, ...]) -> None:
    kinds = Counter("+".join(task.payload["eval"]["eval_types"]) for task in original)
    assert kinds == {
        "string_match": 325,
        "program_html": 282,
        "url_match+program_html": 129,
        "url_match": 66,
        "string_match+url_match": 10,
    }
    assert sum(needs_judge(task.payload) for task in original) == 118
    assert sum(len(start_urls(task.payload)) > 1 for task in original) == 5
    assert not any(task.payload["require_reset"] for task in original)
    assert {key for task in original for key in needed(task.payload)} == {
        "shopping",
        "shopping_admin",
        "reddit",
        "gitlab",
        "map",
        "wikipedia",
    }
    assert all(
        task.difficulty == sum(PARTS[kind].count(task.payload["eval"]) for kind in kinds.split("+"))
        for task in original
        for kinds in ["+".join(task.payload["eval"]["eval_types"])]
    )


def targets(original: tuple[Task, ...]) -> list[dict[str, Any]]:
    return [target for task in original for target in task.payload["eval"].get("program_html") or ()]


def test_helper_functions_of_the_original_tasks_are_supported(original: tuple[Task, ...]) -> None:
    all_targets = targets(original)
    calls = [text for target in all_targets for text in (target["url"], target["locator"]) if text.startswith("func:")]
    assert (len(all_targets), len(calls)) == (651, 97)
    assert Counter(parse_call(call).name for call in calls) == {
        "reddit_get_post_url": 65,
        "gitlab_get_project_memeber_role": 12,
        "shopping_get_latest_order_url": 10,
        "shopping_get_sku_latest_review_rating": 5,
        "shopping_get_sku_latest_review_author": 5,
    }


def test_scripts_of_the_original_tasks_are_valid_javascript(
    original: tuple[Task, ...], session: Session, run: Run
) -> None:
    scripts = [target["locator"] for target in targets(original) if target["locator"].startswith(("document", "["))]
    scripts += [action for target in targets(original) for action in target["prep_actions"]]
    assert len(scripts) == 534
    find_broken = """scripts => scripts.filter(script => {
        try { new Function(`let found; try { found = ${script}\\n; } catch {}`); return false; } catch { return true; }
    })"""
    assert run(session.tab.page.evaluate(find_broken, [*scripts, "document.("])) == ["document.("]


# The package's evaluators.


def har(tmp_path: Path, *entries: dict[str, Any]) -> Path:
    path = tmp_path / "trace.har"
    path.write_text(json.dumps({"log": {"entries": entries}}))
    return path


def request(url: str, method: str = "GET", status: int = 200, form: str = "") -> dict[str, Any]:
    """Return a HAR entry of a page request, as opposed to a resource that a page loads."""
    headers = [{"name": "accept", "value": "text/html"}]
    post = {"mimeType": "application/x-www-form-urlencoded", "text": form}
    return {
        "request": {
            "method": method,
            "url": url,
            "headers": headers,
            "cookies": [],
            **({"postData": post} if form else {}),
        },
        "response": {"status": status, "headers": [], "cookies": [], "content": {}, "redirectURL": "/there"},
    }


def answer_json(task_type: str, data: Any = None, status: str = "SUCCESS") -> str:
    return json.dumps({"task_type": task_type, "status": status, "retrieved_data": data, "error_details": None})


def test_correct_and_wrong_answers_are_scored(audited: dict[int, dict[str, Any]], tmp_path: Path) -> None:
    """On the tasks that are evaluated by their answer only."""
    recording = har(tmp_path, request("http://shop.example/"))
    answer_only = [task for task in audited.values() if len(task["eval"]["evaluators"]) == 1]
    assert len(answer_only) == 324
    scores: dict[int, tuple[float, float]] = {}
    for task in (audited[319], *answer_only[::8]):
        expected = task["eval"]["evaluators"][0]["expected"]
        data = [value[0] if isinstance(value, list) else value for value in expected["retrieved_data"] or ()] or None
        correct = SITES.fill({**expected, "retrieved_data": data})
        answers = (correct, {**correct, "status": "UNKNOWN_ERROR"})
        first, second = (evaluate_verified(task, json.dumps(answer), recording, SITES).score for answer in answers)
        scores[task["task_id"]] = first, second
    assert scores.pop(319) == (0.0, 0.0)  # unsolvable, since the package's data lacks a key
    assert list(scores.values()) == [(1.0, 0.0)] * 41


@pytest.mark.parametrize(
    ("answer", "url", "parts"),
    [
        (answer_json("NAVIGATE"), "http://shop.example/dashboard/todos", (1, 1)),
        (answer_json("NAVIGATE"), "http://shop.example/dashboard/issues", (1, 0)),
        (answer_json("NAVIGATE"), "http://wiki.example/dashboard/todos", (1, 0)),
        (answer_json("RETRIEVE"), "http://shop.example/dashboard/todos", (0, 1)),
        ("done", "http://shop.example/dashboard/todos", (0, 1)),
        ("", "http://shop.example/dashboard/todos", (0, 1)),
        ('{"status": 5}', "http://shop.example/dashboard/todos", (0, 1)),  # raises in the package
        ('{"task_type": null, "status": null}', "http://shop.example/dashboard/todos", (0, 1)),
    ],
)
def test_visited_pages_are_scored(
    audited: dict[int, dict[str, Any]], tmp_path: Path, answer: str, url: str, parts: tuple[int, int]
) -> None:
    verdict = evaluate_verified(audited[44], answer, har(tmp_path, request(url)), SITES)
    names = ("0 AgentResponseEvaluator", "1 NetworkEventEvaluator")
    assert verdict == Verdict(float(all(parts)), dict(zip(names, parts, strict=True)))


def test_submitted_forms_are_scored(audited: dict[int, dict[str, Any]], tmp_path: Path) -> None:
    form = "submission%5Btitle%5D={}&submission%5Bforum%5D=10039"
    title = "what+is+the+recommended+console+to+buy+these+days%3F"
    submit = partial(request, "http://wiki.example/submit/consoles", "POST", 302)
    for text, score in ((title, 1.0), ("tea", 0.0)):
        recording = har(tmp_path, submit(form.format(text)))
        assert evaluate_verified(audited[600], answer_json("MUTATE"), recording, SITES).score == score


def test_recordings_of_the_browser_are_scored(
    audited: dict[int, dict[str, Any]], tmp_path: Path, server: PagesServer, browser: Browser, run: Run
) -> None:
    server.pages |= {"/dashboard/todos": "<h1>To do</h1>", "/dashboard/issues": "<h1>Issues</h1>"}

    async def visit(page: str) -> Path:
        path = tmp_path / f"{page}.har"
        session = await browser.session(record_har_path=path)
        await session.goto(f"http://shop.example/dashboard/{page}")
        await session.close()
        return path

    scores = {
        p: evaluate_verified(audited[44], answer_json("NAVIGATE"), run(visit(p)), SITES).score
        for p in ("todos", "issues")
    }
    assert scores == {"todos": 1.0, "issues": 0.0}


def test_invalid_recording_is_a_fault(audited: dict[int, dict[str, Any]], tmp_path: Path) -> None:
    for path in (har(tmp_path), tmp_path / "nothing.har"):
        with pytest.raises(EnvFault, match="can't evaluate the recording"):
            evaluate_verified(audited[44], answer_json("NAVIGATE"), path, SITES)


def test_package_prints_nothing(
    audited: dict[int, dict[str, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    evaluate_verified(audited[44], '{"status": 5}', har(tmp_path, request("http://shop.example/")), SITES)
    assert capfd.readouterr() == ("", "")
