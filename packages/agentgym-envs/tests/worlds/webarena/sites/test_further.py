"""Tests of what the rough skin adds on the server: further blocks and suggestions."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.sites.directory import SKIN_HEADER

ROUGH = {SKIN_HEADER: "rough"}
PAGES = {
    "shopping": ("/", "/category/tents", "/account"),
    "shopping_admin": ("/", "/orders", "/products/100"),
    "reddit": ("/", "/communities", "/submit"),
    "gitlab": ("/explore", "/dashboard/issues", "/wren-games/chess-clock"),
    "map": ("/", "/towns", "/directions"),
    "wikipedia": ("/", "/all", "/wiki/Alderwick"),
}
BLOCK = re.compile(r'<section class="more-block">.*?</section>', re.DOTALL)
LINK = re.compile(r'<a [^>]*href="([^"]*)"[^>]*>([^<]+)</a>')


def further_links(html: str) -> list[tuple[str, str]]:
    """Return address and text of the links in the further blocks."""
    return [(unescape(href), unescape(text)) for part in BLOCK.findall(html) for href, text in LINK.findall(part)]


@pytest.mark.parametrize("key", PAGES)
def test_rough_pages_have_further_blocks(browse: Callable[..., Any], key: str) -> None:
    client = browse(key)
    for path in PAGES[key]:
        plain, rough = client.get(path), client.get(path, headers=ROUGH)
        assert (plain.status_code, rough.status_code) == (200, 200)
        assert "rough/" not in plain.text
        assert BLOCK.findall(plain.text) == []
        links = further_links(rough.text)
        assert len(links) >= 30
        assert further_links(client.get(path, headers=ROUGH).text) == links
        own = {unescape(text).strip() for _, text in LINK.findall(plain.text)}
        assert own.isdisjoint(text for _, text in links), "links would be ambiguous"


@pytest.mark.parametrize("key", PAGES)
def test_further_links_lead_to_pages(browse: Callable[..., Any], key: str) -> None:
    client = browse(key)
    links = further_links(client.get(PAGES[key][1], headers=ROUGH).text)
    assert {client.get(href).status_code for href, _ in links[::7]} == {200}


def test_pages_differ_in_their_blocks(browse: Callable[..., Any]) -> None:
    client = browse("shopping")
    one, other = (further_links(client.get(f"/product/{i}", headers=ROUGH).text) for i in (100, 101))
    assert one != other


def test_strangers_see_nothing_of_the_administration(browse: Callable[..., Any]) -> None:
    client = browse("shopping_admin", signed_in=False)
    page = client.get("/login", headers=ROUGH)
    assert page.status_code == 200
    assert further_links(page.text) == []
    assert client.get("/suggestions?q=order", headers=ROUGH).json() == []


def test_private_projects_stay_private(browse: Callable[..., Any]) -> None:
    client = browse("gitlab")
    client.change("UPDATE projects SET visibility = 'private' WHERE id > 1")
    paths = {href for href, _ in further_links(client.get("/explore", headers=ROUGH).text)}
    ((namespace, path),) = client.rows("SELECT namespace, path FROM projects WHERE id = 1")
    assert paths
    assert all(href.startswith(f"/{namespace}/{path}") for href in paths)


def test_suggestions_contain_what_is_typed(browse: Callable[..., Any]) -> None:
    client = browse("shopping")
    found = client.get("/suggestions?q=Tent", headers=ROUGH).json()
    assert 1 <= len(found) <= 6
    assert all("tent" in one["text"].lower() for one in found)
    assert client.get(found[0]["href"]).status_code == 200
    assert client.get("/suggestions?q=t", headers=ROUGH).json() == []
    assert client.get("/suggestions?q=100%25_", headers=ROUGH).json() == []


def test_plain_skin_has_no_suggestions(browse: Callable[..., Any]) -> None:
    assert browse("wikipedia").get("/suggestions?q=town").status_code == 404
