"""Tests that mistakes may be repaired: the plan of another task, undone by the site's pages, costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.sites.server import Web
from form_player import Player, tasks_by_template
from repairs import FINAL, OVERWRITING, UNDOS, undo

Task = dict[str, Any]
Tasks = dict[str, list[Task]]


@pytest.fixture(scope="module")
def tasks() -> Tasks:
    """The tasks that a database decides, by template."""
    return tasks_by_template()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Web:
    return Web(tmp_path_factory.mktemp("episodes"))


@pytest.fixture
def visit(web: Web, tmp_path: Path) -> Iterator[Callable[[Task], Player]]:
    """A function that starts an episode of a task."""
    web._episodes = tmp_path  # pyright: ignore[reportPrivateUsage]
    players: list[Player] = []

    def start(task: Task) -> Player:
        players.append(Player(web, tmp_path, task))
        return players[-1]

    yield start
    for player in players:
        player.close()


def _pair(tasks: list[Task]) -> tuple[Task, Task]:
    """Return two tasks about different things."""
    task = tasks[0]
    other = next(other for other in tasks if not {*task["entities"]} & {*other["entities"]})
    if task["template"] == "shop/use-coupon":  # a cart has one coupon, so the mistake is the product
        other = other | {"plan": other["plan"][:3]}
    return task, other


def test_every_template_is_classified(tasks: Tasks) -> None:
    assert sorted([*UNDOS, *OVERWRITING, *FINAL]) == sorted(tasks)


@pytest.mark.long
@pytest.mark.parametrize("template", UNDOS)
def test_repaired_mistakes_cost_nothing(template: str, tasks: Tasks, visit: Callable[[Task], Player]) -> None:
    """Before the task and after it; the same mistake without a repair costs the score."""
    task, other = _pair(tasks[template])
    before, after, unrepaired = visit(task), visit(task), visit(task)
    before.start(other)
    before.play(other["plan"])
    undo(before, other)
    assert not before.scores()
    before.start(task)
    before.play(task["plan"])
    assert before.scores(), "repaired before the task"

    after.play(task["plan"])
    assert after.scores()
    after.start(other)
    after.play(other["plan"])
    assert not after.scores(), "the mistake alone"
    undo(after, other)
    assert after.scores(), "repaired after the task"

    unrepaired.start(other)
    unrepaired.play(other["plan"])
    unrepaired.start(task)
    unrepaired.play(task["plan"])
    assert not unrepaired.scores(), "not repaired"


@pytest.mark.parametrize("template", sorted(OVERWRITING))
def test_a_wrong_value_may_be_overwritten(template: str, tasks: Tasks, visit: Callable[[Task], Player]) -> None:
    task, other = _pair(tasks[template])
    straight, player = visit(task), visit(task)
    straight.play(task["plan"])
    player.start(other)
    player.play(other["plan"])
    assert not player.scores()
    for post in straight.posts:
        player.post(post)
    assert player.scores()
