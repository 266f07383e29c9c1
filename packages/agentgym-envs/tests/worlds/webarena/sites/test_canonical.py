"""Tests of the canonical addresses of pages, and of the judge that compares them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.evaluation import url_match
from agentgym_envs.worlds.webarena.sites import store
from agentgym_envs.worlds.webarena.sites.directory import PLACES

Judged = Callable[[str, str], float]
LABEL = "code/show-label"


def _canonical(page: str) -> str:
    head = page.partition("</head>")[0]
    return html.unescape("".join(re.findall('<link rel="canonical" href="([^"]*)">', head)))


@pytest.fixture
def judged(browse: Callable[..., Any]) -> Judged:
    """A function that opens an address and returns the score of the template's first task there."""
    clients: dict[str, Any] = {}

    def judge(template: str, address: str) -> float:
        task = _task(template)
        site = next(key for key, place in PLACES.items() if task["eval"]["reference_url"].startswith(place.url + "/"))
        client = clients[site] = clients.get(site) or browse(site)
        page = client.get(address)
        assert page.status_code == 200
        return url_match.score(task["eval"], str(page.url), _canonical(page.text))

    return judge


def _task(template: str) -> dict[str, Any]:
    return next(task for split in store.tasks().values() for task in split if task["template"] == template)


def _reference(template: str) -> str:
    return _task(template)["eval"]["reference_url"].split(" |OR| ")[0]


TEMPLATES = sorted(
    {
        task["template"]
        for split in store.tasks().values()
        for task in split
        if "url_match" in task["eval"]["eval_types"]
    }
)


@pytest.mark.parametrize("template", TEMPLATES)
def test_pages_of_all_templates_name_an_address_that_scores(template: str, browse: Callable[..., Any]) -> None:
    url = _reference(template)
    site = next(key for key, place in PLACES.items() if url.startswith(place.url + "/"))
    canonical = _canonical(browse(site).get(url).text)
    assert canonical
    assert url_match.score(_task(template)["eval"], "about:blank", canonical) == 1
    assert _canonical(browse(site).get(canonical).text) == canonical


@pytest.mark.parametrize(
    ("template", "old", "new"),
    [
        ("map/show-directions", "from=", "from=%20"),
        ("shop/narrowed", "to=", "to=$"),
        ("shop/narrowed", "to=", "from=0&to="),
        ("shop/narrowed", "to=", "from=0.00&rating=&stock=&to="),
        (LABEL, "state=opened&", ""),
        (LABEL, "state=opened", "state=nonsense"),  # which the site reads as open
        (LABEL, "state=opened", "state=opened&sort=oldest&page=1"),
        ("admin/show-orders", "?status", "?least=&coupon=&status"),
        ("code/show-commits-of", "?author", "?since=&search=&author"),
    ],
)
def test_other_addresses_of_the_same_page_score(template: str, old: str, new: str, judged: Judged) -> None:
    url = _reference(template)
    assert old in url
    assert judged(template, url.replace(old, new, 1)) == 1


def test_names_in_lower_case_and_amounts_with_cents_score(judged: Judged) -> None:
    assert judged("map/show-directions", _reference("map/show-directions").lower()) == 1
    assert judged("shop/narrowed", f"{_reference('shop/narrowed')}.00") == 1
    assert judged("forum/open-best-commenter", f"{_reference('forum/open-best-commenter')}/comments") == 1


@pytest.mark.parametrize(
    ("template", "more"),
    [
        (LABEL, "&search=zzz"),
        (LABEL, "&assignee=none"),
        ("shop/narrowed", "&from=99"),
        ("shop/narrowed", "&stock=1"),
        ("admin/show-orders", "&least=1000"),
        ("code/show-commits-of", "&search=zzz"),
        ("shop/sorted", "&brand=Nobody"),
    ],
)
def test_pages_that_further_filters_narrow_do_not_score(template: str, more: str, judged: Judged) -> None:
    assert judged(template, _reference(template) + more) == 0


def test_filters_that_the_site_ignores_change_nothing(judged: Judged) -> None:
    assert judged("admin/show-orders", _reference("admin/show-orders") + "&least=much&unknown=1") == 1
    assert judged("shop/narrowed", _reference("shop/narrowed") + "&rating=9&view=list") == 1


def test_an_error_page_names_no_address(browse: Callable[..., Any]) -> None:
    page = browse("shopping").get("/product/999999")
    assert page.status_code == 404
    assert _canonical(page.text) == ""


def test_webarenas_rules_ignore_canonical_addresses() -> None:
    task = {"reference_url": "http://a/x?q=1", "url_note": "GOLD in PRED"}
    assert url_match.score(task, "http://a/x?q=1", "http://a/y") == 1
    assert url_match.score(task, "http://a/y", "http://a/x?q=1") == 0
    assert url_match.score(task | {"url_note": "EXACT"}, "http://a/x?q=1", "http://a/y") == 1


@pytest.mark.parametrize("template", ["map/show-directions", "map/show-stops"])
def test_directions_with_a_place_that_is_not_found_do_not_score(template: str, judged: Judged) -> None:
    url = _reference(template)
    assert judged(template, url) == 1
    for more in ("&from=Zzz", "&from=", "&stop3=Zzz"):
        assert judged(template, url + more) == 0, more
