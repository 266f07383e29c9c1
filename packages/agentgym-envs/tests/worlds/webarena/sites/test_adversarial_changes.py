"""The judge against right and wrong routes, made for a task of every template that a database decides.

Routes are made from the requests that the oracle's plan sends. At least five routes to the right state score 1, and at
least five that leave something out, add something or change something score 0. The sites are served without a browser.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from agentgym_envs.worlds.webarena.sites.directory import PLACES
from agentgym_envs.worlds.webarena.sites.server import Web
from ci_subset import subset_in_ci
from form_player import Player, Post, tasks_by_template
from repairs import OVERWRITING

Task = dict[str, Any]
Route = Callable[[Player], None]
TASKS = tasks_by_template()
_TOGGLES = "vote upvote-all-of-member save-newest subscribe block-author moderate-post clear-posts-of-member"
ONCE = {
    *(f"forum/{name}" for name in _TOGGLES.split()),
    *("code/star-top", "code/follow", "code/todo-done", "code/close-issue", "code/close-merge"),
    *("shop/review", "shop/message", "shop/add-with-option", "shop/use-coupon", "shop/reorder", "shop/buy"),
    *("shop/this-to-cart", "shop/most-reviewed-of-tabs", "admin/note-here"),
    *("shop/present", "shop/cheapest-to-cart", "shop/cart-and-wish", "shop/new-address"),
    *("admin/customer-note", "admin/brand-prices"),
    *("forum/ask-where-it-fits", "forum/share-link", "forum/reply-to-comment", "forum/comment-on-top-post"),
    *("forum/send-message", "forum/answer-message", "code/new-issue", "code/comment-on-issue", "code/ssh-key"),
    *("code/comment-commit-count", "code/deploy-key"),
    *("forum/repost-picture", "forum/repost-top-picture"),
    *("across/post-phone", "across/post-population", "across/post-cheaper", "across/message-author"),
    *("across/open-issue", "across/new-address"),
}
"""Templates whose requests, sent twice, undo themselves or do more than was asked."""
_IGNORED = {"next", "back", "flair", "milestone"}  # unknown flairs and milestones are none
OPEN: Mapping[str, set[str]] = {
    "shop/review": {"nickname"},
    "shop/message": {"name", "email"},
    "shop/return": {"comment"},
    "shop/buy": {"email", "recipient", "street", "town", "postcode", "phone"},  # the chosen address counts
    "shop/present": {"email", "phone"},
    "shop/moved": {"is_default"},
    "admin/disable-sold-out": {"percent"},
    "admin/add-product": {"brand", "colour", "material", "description"},
    "admin/edit-customer": {"active"},
    "admin/customer-group": {"active"},
    "admin/change-price": {"active"},
    "forum/upvote-all-of-member": {"value"},
    "forum/vote": {"value"},
    "code/new-issue": {"body"},
    "code/new-milestone": {"description"},
    "code/new-label": {"description"},
    "code/new-project": {"path", "description", "readme"},
    "code/new-group": {"description"},
    "code/set-reviewer": {"assignee"},
    "code/new-merge": {"body", "assignee", "reviewer"},
    "code/set-default": {"fixed", "message"},
    "code/fix-typo": {"fixed", "message"},
    "code/readme-part": {"fixed"},
}
"""Fields that tasks leave open, or whose other values mean the same to the site."""


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Web, Path]:
    folder = tmp_path_factory.mktemp("episodes")
    return Web(folder), folder


def _sends(player: Player, *posts: Post) -> None:
    for post in posts:
        player.post(post)


def _plays(player: Player, plan: list[Any]) -> None:
    player.play(plan)


def _looks_around(player: Player, plan: list[Any]) -> None:
    start = player.page
    for link in [link for link in start.root.iter("a") if link.get("href", "").startswith("/")][:6]:
        player.play([{"do": "goto", "url": urljoin(start.url, link.attrib["href"])}])
    player.play([{"do": "goto", "url": start.url}, *plan])


def _signs_out(player: Player, posts: list[Post], task: Task) -> None:
    _sends(player, *posts)
    for site in task["sites"]:
        if PLACES[site].account:
            player.post(Post(f"{PLACES[site].url}/logout"))


def _with_typos(plan: list[Any]) -> list[Any]:
    """Type something else into each field first, and correct it before the form is sent."""
    typed = [step for step in plan if step["do"] == "type" and not step["enter"]]
    return [
        again
        for step in plan
        for again in ([step | {"text": f"{step['text']} or not"}, step] if step in typed else [step])
    ]


def _right(task: Task, posts: list[Post]) -> Iterator[tuple[str, Route]]:
    yield "plan", partial(_plays, plan=task["plan"])
    yield "requests alone", lambda player: _sends(player, *posts)
    yield "typos corrected", partial(_plays, plan=_with_typos(task["plan"]))
    yield "looked around first", partial(_looks_around, plan=task["plan"])
    yield "signed out at the end", partial(_signs_out, posts=posts, task=task)
    more = [replace(post, fields=(*post.fields, ("unknown", "1"))) for post in posts]
    yield "fields that the site doesn't know", lambda player: _sends(player, *more)
    spaced = [replace(post, fields=tuple((key, _spaced(value)) for key, value in post.fields)) for post in posts]
    yield "spaces around texts", lambda player: _sends(player, *spaced)
    if task["template"] not in ONCE:
        yield "requests twice", lambda player: _sends(player, *posts, *posts)


def _spaced(value: str) -> str:
    """Put blanks around a text of one line, and at the end of a file."""
    return f"{value}  \r\n" if "\n" in value else f" {value} " if " " in value else value


def _other_value(value: str) -> str:
    return str(int(value) + 1) if re.fullmatch(r"\d{1,8}", value) else f"{value}x"


def _wrong(task: Task, posts: list[Post], others: list[Post]) -> Iterator[tuple[str, Route]]:
    yield "nothing", lambda player: None
    yield "looks around", partial(_looks_around, plan=[])
    for i in range(len(posts)):
        yield f"without request {i}", lambda player, i=i: _sends(player, *posts[:i], *posts[i + 1 :])
    yield "another task", lambda player: _sends(player, *others)
    yield "more than the task", lambda player: _sends(player, *posts, *others)
    if task["template"] not in OVERWRITING:
        yield "another task first", lambda player: _sends(player, *others, *posts)
    if task["template"] in ONCE:
        yield "requests twice", lambda player: _sends(player, *posts, *posts)
    closed = OPEN.get(task["template"], set()) | _IGNORED
    for i, post in enumerate(posts):
        for j, (key, value) in enumerate(post.fields):
            if key not in closed:
                fields = (*post.fields[:j], (key, _other_value(value)), *post.fields[j + 1 :])
                changed = [*posts[:i], replace(post, fields=fields), *posts[i + 1 :]]
                yield f"{key}={fields[j][1]!r}", lambda player, changed=changed: _sends(player, *changed)


def _scores(episodes: tuple[Web, Path], task: Task, route: Route, **options: Any) -> bool:
    player = Player(*episodes, task, **options)
    try:
        route(player)
        return player.scores()
    finally:
        player.close()


def _requests(episodes: tuple[Web, Path], task: Task) -> list[Post]:
    player = Player(*episodes, task)
    player.play(task["plan"])
    player.close()
    return player.posts


def _task_and_other(template: str) -> tuple[Task, Task]:
    """Return a task of the template, from another split for each, and one about other things."""
    tasks = TASKS[template]
    task = tasks[sorted(TASKS).index(template) % len(tasks)]
    return task, next(other for other in tasks if not {*other["entities"]} & {*task["entities"]})


@pytest.mark.long
@pytest.mark.parametrize("template", subset_in_ci(sorted(TASKS), 4))
def test_right_routes_score_and_wrong_ones_do_not(template: str, episodes: tuple[Web, Path]) -> None:
    """All templates take two minutes."""
    task, other = _task_and_other(template)
    posts = _requests(episodes, task)
    right, wrong = dict(_right(task, posts)), dict(_wrong(task, posts, _requests(episodes, other)))
    assert min(len(right), len(wrong)) >= 5
    assert [name for name, route in right.items() if not _scores(episodes, task, route)] == []
    assert [name for name, route in wrong.items() if _scores(episodes, task, route)] == []
    assert _scores(episodes, task, right["plan"], skin="rough")
    assert not _scores(episodes, task, right["requests alone"], signed_in=False)


def test_tables_name_templates() -> None:
    assert {*ONCE, *OPEN} <= TASKS.keys()
