"""Tests that the oracle solves every embedded task through the browser, and that stopping immediately solves none."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest
from agentgym_envs.core.tasks import SPLITS, Task
from agentgym_envs.worlds.webarena.actions.grammar import on_one_line
from agentgym_envs.worlds.webarena.browser.site_urls import Sites
from agentgym_envs.worlds.webarena.env import WebArena
from agentgym_envs.worlds.webarena.evaluation import database, string_match, url_match
from agentgym_envs.worlds.webarena.page.observation import literal
from agentgym_envs.worlds.webarena.sites import store
from agentgym_envs.worlds.webarena.sites.directory import PLACES
from agentgym_envs.worlds.webarena.tasks.task_files import start_urls

CONCURRENT = 8
MAX_TURNS = 30
"""The limit of the registered environment."""


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return list(WebArena().tasks)


def may_score_immediately(task: Task) -> bool:
    """Return whether `stop []` on the start page could score, as far as can be checked without a browser."""
    sites = Sites.of({key: place.url for key, place in PLACES.items()})
    payload = sites.fill(dict(task.payload))
    evaluation = payload["eval"]
    files = {key: store.database(place.database) for key, place in PLACES.items() if place.database}
    for kind in evaluation["eval_types"]:
        match kind:
            case "string_match":
                score = asyncio.run(string_match.score(payload, "", None))
            case "url_match":
                url = f"{start_urls(payload)[0]}/"
                score = url_match.score(evaluation, url, url)
            case "database":
                score = database.score(evaluation["database"], files)
            case _:
                continue
        if not score:
            return False
    return True


@pytest.mark.long
def test_no_task_is_solved_by_stopping_immediately(tasks: list[Task]) -> None:
    assert [task.payload["intent"] for task in tasks if may_score_immediately(task)] == []


def premature_text(env: Any, shown: list[str]) -> str | None:
    """Return the oracle's thought or plan if it names an invisible element, or an answer that wasn't shown yet."""
    thought, plan = env.oracle_thought(), env.oracle_plan()
    step, answer = env._expert.remaining[0], env._expert.remaining[-1]["answer"]
    if (
        thought.startswith("I am on")
        and "There is the" in thought
        and f"{step['role']} {literal(step['name'])}" not in shown[-1]
    ):
        return thought
    text = plan if step["do"] == "stop" else f"{thought} {plan}"
    known = len(answer) < 4 or any(answer in observation for observation in shown)
    return None if known or answer not in text else text


def failure(task: Task, idle_envs: SimpleQueue[WebArena]) -> str | None:
    """Return a description of the episode if the oracle didn't solve the task within the limit."""
    env = idle_envs.get()
    try:
        observation, _ = env.reset(options={"task": task.id})
        shown, actions = [observation], list[str]()
        for _ in range(MAX_TURNS):
            actions.append(env.oracle())
            if text := premature_text(env, shown):
                return f"{task.id}: {text!r} after {actions}"
            observation, _, terminated, _, info = env.step(actions[-1])
            shown.append(observation)
            if terminated:
                parts = info["raw"]["parts"]
                return None if info["success"] else f"{task.id} {task.payload['intent']}: {parts} after {actions}"
        return f"{task.id} {task.payload['intent']}: too long: {actions}"
    finally:
        idle_envs.put(env)


def unsolved(tasks: list[Task], idle_envs: SimpleQueue[WebArena]) -> list[str]:
    with ThreadPoolExecutor(CONCURRENT) as threads:
        return [text for text in threads.map(lambda task: failure(task, idle_envs), tasks) if text]


def one_task_per_template(tasks: list[Task]) -> list[Task]:
    """Return one task per template, each at a different position, so that all splits occur."""
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.payload["template"], []).append(task)
    return [group[i % len(group)] for i, group in enumerate(groups.values())]


def test_texts_that_the_oracle_writes_are_lines(tasks: list[Task]) -> None:
    """Reply formats without functions read one line as the action."""
    steps = [step for task in tasks for step in task.payload["plan"]]
    typed = [step["text"] for step in steps if step["do"] == "type"]
    assert any("\n" in text for text in typed)
    written = [*map(on_one_line, typed), *(step["answer"] for step in steps if step["do"] == "stop")]
    assert [text for text in written if len(text.splitlines()) > 1] == []


@pytest.mark.long
def test_oracle_solves_every_task(tasks: list[Task], idle_envs: SimpleQueue[WebArena]) -> None:
    """All tasks take 15 to 20 minutes; CI plays one task of every tenth template."""
    selected = one_task_per_template(tasks)[::10] if "CI" in os.environ else tasks
    assert {task.split for task in selected} == set(SPLITS)
    assert len({task.category for task in selected}) == 7, "a site is missing"
    assert unsolved(selected, idle_envs) == []
