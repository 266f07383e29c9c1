"""Every embedded task can be done through the browser, and none by doing nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest
from agentgym_envs.core.tasks import SPLITS, Task
from agentgym_envs.worlds.webarena.browser.site_urls import Sites
from agentgym_envs.worlds.webarena.env import WebArena
from agentgym_envs.worlds.webarena.evaluation import database, string_match, url_match
from agentgym_envs.worlds.webarena.page.observation import literal
from agentgym_envs.worlds.webarena.sites import store
from agentgym_envs.worlds.webarena.sites.directory import PLACES

AT_ONCE = 8
MOST_TURNS = 30
"""The limit of the registered world."""


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return list(WebArena().tasks)


def scores_at_once(task: Task) -> bool:
    """Whether `stop []` on the first page could be worth something, as far as it shows without a browser."""
    sites = Sites.of({key: place.url for key, place in PLACES.items()})
    payload = sites.fill(dict(task.payload))
    judged = payload["eval"]
    files = {key: store.database(place.database) for key, place in PLACES.items() if place.database}
    for kind in judged["eval_types"]:
        match kind:
            case "string_match":
                worth = asyncio.run(string_match.score(payload, "", None))
            case "url_match":
                worth = url_match.score(judged, f"{payload['start_url']}/")
            case "database":
                worth = database.score(judged["database"], files)
            case _:
                continue
        if not worth:
            return False
    return True


def test_no_task_is_done_by_stopping_at_once(tasks: list[Task]) -> None:
    assert [task.payload["intent"] for task in tasks if scores_at_once(task)] == []


@pytest.fixture(scope="module")
def idle(requires_browser: None) -> Iterator[SimpleQueue[WebArena]]:
    """Worlds that wait for a task."""
    worlds = [WebArena() for _ in range(AT_ONCE)]
    queue: SimpleQueue[WebArena] = SimpleQueue()
    for world in worlds:
        queue.put(world)
    yield queue
    for world in worlds:
        world.close()


def untrue(world: Any, shown: list[str]) -> str | None:
    """The oracle's thought or plan if it names an element that isn't in sight, or an answer that wasn't shown yet."""
    thought, plan = world.oracle_thought(), world.oracle_plan()
    step, answer = world._expert.remaining[0], world._expert.remaining[-1]["answer"]
    if (
        thought.startswith("I am on")
        and "There is the" in thought
        and f"{step['role']} {literal(step['name'])}" not in shown[-1]
    ):
        return thought
    ahead = plan if step["do"] == "stop" else f"{thought} {plan}"
    known = len(answer) < 4 or any(answer in text for text in shown)
    return None if known or answer not in ahead else ahead


def failure(task: Task, idle: SimpleQueue[WebArena]) -> str | None:
    """What the oracle did when it didn't do the task within the limit."""
    world = idle.get()
    try:
        observation, _ = world.reset(options={"task": task.id})
        shown, said = [observation], list[str]()
        for _ in range(MOST_TURNS):
            said.append(world.oracle())
            if told := untrue(world, shown):
                return f"{task.id}: {told!r} after {said}"
            observation, _, terminated, _, info = world.step(said[-1])
            shown.append(observation)
            if terminated:
                parts = info["raw"]["parts"]
                return None if info["success"] else f"{task.id} {task.payload['intent']}: {parts} after {said}"
        return f"{task.id} {task.payload['intent']}: too long: {said}"
    finally:
        idle.put(world)


def unsolved(tasks: list[Task], idle: SimpleQueue[WebArena]) -> list[str]:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return [text for text in threads.map(lambda task: failure(task, idle), tasks) if text]


def one_of_each_template(tasks: list[Task]) -> list[Task]:
    """Of each another one of its tasks, so that all splits have their turn."""
    kinds: dict[str, list[Task]] = {}
    for task in tasks:
        kinds.setdefault(task.payload["template"], []).append(task)
    return [own[number % len(own)] for number, own in enumerate(kinds.values())]


@pytest.mark.long
def test_the_oracle_solves_every_task(tasks: list[Task], idle: SimpleQueue[WebArena]) -> None:
    """All 1,130 take a quarter of an hour; CI plays one of every tenth template."""
    some = one_of_each_template(tasks)[::10] if "CI" in os.environ else tasks
    assert {task.split for task in some} == set(SPLITS)
    assert len({task.category for task in some}) == 7, "sites"
    assert unsolved(some, idle) == []
