"""Tests of the option `skin`: both skins have the same tasks, requests and judgements, and the oracle solves both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from agentgym_envs.core.registry import make
from agentgym_envs.core.tasks import Task
from agentgym_envs.worlds.webarena.env import WebArena
from agentgym_envs.worlds.webarena.options import SKINS, draw_skin
from agentgym_envs.worlds.webarena.page.observation import tree
from ci_subset import subset_in_ci

MAX_STEPS = 30
"""The limit of the registered environment."""
EVERYDAY = ("map/travel-time", "shop/return")
FORMS = ("shop/new-address", "admin/new-coupon", "forum/send-message", "code/new-milestone", "map/show-directions")
"""Templates with a form of each site."""

Envs = dict[str, WebArena]


@pytest.fixture(scope="module")
def envs(requires_browser: None) -> Iterator[Envs]:
    """An environment of each skin."""
    with closing(WebArena()) as plain, closing(WebArena(skin="rough")) as rough:
        yield {"plain": plain, "rough": rough}


@pytest.fixture(scope="module")
def templates() -> dict[str, Task]:
    """A task of each template."""
    groups: dict[str, list[Task]] = {}
    for task in WebArena().tasks:
        groups.setdefault(task.cluster, []).append(task)
    return {name: group[i % len(group)] for i, (name, group) in enumerate(groups.items())}


def play(env: WebArena, task: Task, *, watch: Callable[[Any], None] | None = None) -> tuple[list[str], dict[str, Any]]:
    """Let the oracle play a task; return its actions and the last `info`. `watch` gets each of the pages' requests."""
    _, info = env.reset(options={"task": task.id})
    if watch is not None:
        episode = env._episode
        assert episode is not None

        async def subscribe() -> None:  # on the browser's loop
            episode.session.context.on("request", watch)

        episode.run(subscribe(), 60)
    actions, terminated = list[str](), False
    while not terminated and len(actions) < MAX_STEPS:
        actions.append(env.oracle())
        _, _, terminated, _, info = env.step(actions[-1])
    return actions, info


def sent(env: WebArena, task: Task) -> tuple[list[tuple[str, str]], str]:
    """Return the bodies of the forms that the oracle sends, with their paths, and the path and query it stops at."""
    found: list[tuple[str, str]] = []

    def watch(request: Any) -> None:
        path = urlsplit(request.url).path
        if request.method == "POST" and path != "/preview":  # previews depend on how fast one types
            found.append((path, request.post_data or ""))

    actions, info = play(env, task, watch=watch)
    assert info["success"], actions
    last = urlsplit(info["raw"]["url"])
    return found, f"{last.path}?{last.query}"


def check_same_requests(envs: Envs, task: Task) -> None:
    plain, rough = (sent(envs[skin], task) for skin in ("plain", "rough"))
    assert plain == rough


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"skin": "dark"}, "skin must be 'plain', 'rough' or 'mixed', not 'dark'"),
        ({"skin": "rough", "task_set": "webarena"}, "leave skin out for webarena"),
        ({"skin": "mixed", "task_set": "miniwob"}, "leave skin out for miniwob"),
    ],
)
def test_wrong_skins_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make("agentgym/WebArena-v0", **options)


def test_skins_have_the_same_tasks() -> None:
    assert WebArena(skin="rough").tasks is WebArena().tasks


def test_tasks_of_one_seed_have_mixed_skins() -> None:
    ids = WebArena().tasks.test.ids[:200]
    skins = [[draw_skin(SKINS, task, drawn) for task in ids] for drawn in (7, 7, 8)]
    assert skins[0] == skins[1]
    assert skins[0] != skins[2]
    assert all(len(ids) * 0.35 < each.count("rough") < len(ids) * 0.65 for each in skins)


def test_mixed_skin_of_a_drawn_task_is_that_of_the_same_task_and_seed() -> None:
    env = WebArena(skin="mixed")

    def chosen(seed: int, options: dict[str, Any]) -> tuple[str, str]:
        env.np_random = np.random.default_rng(seed)
        return env._choose(options).id, env._skin

    drawn = [chosen(seed, {}) for seed in range(20)]
    assert [chosen(seed, {"task": task}) for seed, (task, _) in enumerate(drawn)] == drawn


@pytest.mark.long
def test_mixed_skin_is_drawn_from_the_task(requires_browser: None) -> None:
    with closing(WebArena(skin="mixed", templates="map/phone")) as env:
        ids = env.tasks.train.ids
        drawn = [env.reset(seed=3, options={"task": task})[1]["raw"]["skin"] for task in [*ids, *ids]]
    assert drawn[: len(ids)] == drawn[len(ids) :]
    assert set(drawn) == set(SKINS)


@pytest.mark.long
def test_mixed_skin_is_drawn_from_the_seed(requires_browser: None) -> None:
    with closing(WebArena(skin="mixed", templates="map/phone")) as env:
        drawn: list[list[tuple[str, bool]]] = []
        for _ in range(2):
            drawn.append([])
            for seed in range(5):
                observation, info = env.reset(seed=seed)
                drawn[-1].append((info["raw"]["skin"], "Cookie notice" in observation))
    assert drawn[0] == drawn[1]
    assert set(drawn[0]) == {("plain", False), ("rough", True)}


@pytest.mark.long
def test_rough_pages_are_the_same_in_every_episode(envs: Envs, templates: dict[str, Task]) -> None:
    seen = [envs["rough"].reset(options={"task": templates["shop/return"].id})[0] for _ in range(2)]
    assert seen[0] == seen[1]
    assert "hasPopup: menu" in seen[0]


@pytest.mark.long
@pytest.mark.parametrize("name", EVERYDAY)
def test_oracle_solves_a_task(envs: Envs, templates: dict[str, Task], name: str) -> None:
    actions, info = play(envs["rough"], templates[name])
    assert info["success"], actions


@pytest.mark.long
def test_form_sends_the_same_request(envs: Envs, templates: dict[str, Task]) -> None:
    check_same_requests(envs, templates["shop/message"])


@pytest.mark.long
@pytest.mark.parametrize("name", FORMS)
def test_forms_send_the_same_requests(envs: Envs, templates: dict[str, Task], name: str) -> None:
    check_same_requests(envs, templates[name])


@pytest.mark.long
def test_oracle_solves_a_task_of_every_template(envs: Envs, templates: dict[str, Task]) -> None:
    """All templates take half an hour; CI plays every twelfth."""
    unsolved: list[str] = []
    for task in subset_in_ci(list(templates.values()), 12):
        actions, info = play(envs["rough"], task)
        if not info["success"]:
            unsolved.append(f"{task.id} {task.payload['intent']}: {info['raw']['parts']} after {actions}")
    assert unsolved == []


@pytest.mark.long
def test_rough_pages_are_three_to_five_times_longer(envs: Envs, templates: dict[str, Task]) -> None:
    for name in ("shop/buy", "admin/ship-order", "forum/vote", "code/stars", "map/phone", "wiki/award"):
        chars: list[int] = []
        for env in envs.values():
            env.reset(options={"task": templates[name].id})
            chars.append(len(tree(env._seen.page, True, 1 << 30)))
        assert 2.5 <= chars[1] / chars[0] <= 5.5, (name, chars)
