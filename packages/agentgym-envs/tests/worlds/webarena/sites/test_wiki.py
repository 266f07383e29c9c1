"""Tests of the encyclopaedia: its articles, links, lists, search, markup, and unusual input."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from agentgym_envs.worlds.webarena.sites.region import region
from agentgym_envs.worlds.webarena.sites.store import database
from agentgym_envs.worlds.webarena.sites.wiki.article import town_title
from agentgym_envs.worlds.webarena.sites.wiki.finding import article_id, find
from agentgym_envs.worlds.webarena.sites.wiki.markup import blocks, pieces, plain, snippet, targets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture
def wiki(browse: Any) -> Any:
    """A client of the encyclopaedia."""
    return browse("wikipedia")


@pytest.fixture(scope="module")
def articles() -> Any:
    """A connection to the encyclopaedia's database."""
    with closing(sqlite3.connect(database("wiki"))) as db:
        db.row_factory = sqlite3.Row
        yield db


def test_database_has_many_articles_of_every_kind(articles: Any) -> None:
    counts = dict(articles.execute("SELECT kind, count(*) FROM articles GROUP BY kind").fetchall())
    assert sum(counts.values()) > 850
    expected = {"town", "county", "river", "hill", "lake", "person", "firm", "building", "festival", "craft", "list"}
    assert expected < counts.keys()
    assert counts["disambiguation"] > 30


def test_articles_are_reachable_by_links_or_categories(articles: Any) -> None:
    unreachable = (
        "SELECT title FROM articles WHERE id NOT IN (SELECT target FROM links)"
        " AND id NOT IN (SELECT article FROM categories)"
    )
    assert [row["title"] for row in articles.execute(unreachable) if row["title"] != "Harrowland"] == []


def test_facts_match_the_region(articles: Any) -> None:
    for town in region().towns:
        article = article_id(articles, town_title(town.name))
        row = articles.execute("SELECT infobox, body FROM articles WHERE id = ?", (article,)).fetchone()
        infobox = {label: plain(value) for label, value in json.loads(row["infobox"])}
        assert infobox["County"] == town.county
        assert infobox["Population"] == f"{town.population:,} (2021)"
        assert f"{town.population:,} inhabitants" in row["body"]


def test_brand_leads_to_its_firm_or_a_disambiguation(articles: Any) -> None:
    for firm in region().firms:
        row = articles.execute("SELECT * FROM articles WHERE id = ?", (article_id(articles, firm.brand),)).fetchone()
        assert row["kind"] in ("firm", "disambiguation")
        assert firm.name in row["title"] + row["body"]


def test_article_page_shows_all_parts(wiki: Any) -> None:
    page = wiki.get("/wiki/Ironbridge").text
    for part in ("Market day", "Contents", "History", "References", "/category/Towns", 'href="/wiki/River_', "[1]"):
        assert part in page
    assert "[[" not in page
    assert "{{" not in page


def test_plain_text_of_articles_has_no_markup(articles: Any) -> None:
    for row in articles.execute("SELECT title, body FROM articles").fetchall():
        text = plain(row["body"])
        assert not any(mark in text for mark in ("[[", "]]", "{{", "}}", "==", "|")), row["title"]
        assert text


def test_titles_are_found_in_any_case(wiki: Any) -> None:
    assert wiki.get("/search?query=ironbridge").url.path == "/wiki/Ironbridge"
    assert wiki.get("/search?query=ironbridge&fulltext=1").url.path == "/search"
    page = wiki.get("/wiki/Kestrel").text
    assert "Kestrel (town)" in page


def test_full_text_search_shows_snippets(articles: Any, wiki: Any) -> None:
    person = next(person for person in region().people if person.calling == "botanist")
    found = find(articles, f"botanist {person.name.split()[1]} {person.town}")
    assert person.name in [article.title for article in found]
    page = wiki.get("/search?query=sundial+door").text
    assert "sundial" in page
    assert "No article has all the words" in wiki.get("/search?query=zeppelin+xylophone").text


def test_backlinks_list_linking_articles(articles: Any, wiki: Any) -> None:
    firm = region().firms[0]
    page = wiki.get(f"/links/{firm.name.replace(' ', '_').replace('&', '%26')}").text
    assert f"{firm.founder}</a>" in page
    assert "List of firms by year of foundation</a>" in page


def test_list_of_towns_is_sorted_by_population(articles: Any) -> None:
    row = articles.execute("SELECT body FROM articles WHERE title = 'List of towns by population'").fetchone()
    [table] = [block for block in blocks(row["body"])[0] if block["kind"] == "table"]
    people = [int(cells[3][0].text.replace(",", "")) for cells in table["rows"]]
    assert people == sorted(people, reverse=True)
    assert len(people) == len(region().towns)


def test_categories_and_letters_have_pages(wiki: Any) -> None:
    page = wiki.get("/category/People_from_Selby").text
    assert all(person.name in page for person in region().people if person.town == "Selby")
    assert "Page 1 of" in wiki.get("/categories").text
    assert "Selby" in wiki.get("/all?letter=S&page=2").text + wiki.get("/all?letter=S").text
    for path in ("/wiki/Atlantis", "/category/Ghosts", "/links/Atlantis", "/nowhere"):
        assert wiki.get(path).status_code == 404


def test_markup_is_parsed_into_blocks() -> None:
    text = "A [[B|c]] d.{{E, p. 1.}}\n\n== F ==\n\n| G | H |\n| [[I|j]] | 2 |\n\n* [[K]], l"
    shown, references = blocks(text)
    assert [block["kind"] for block in shown] == ["text", "heading", "table", "items"]
    assert references == ["E, p. 1."]
    assert shown[2]["rows"][0][0][0].title == "I"
    assert targets([text]) == ["B", "I", "K"]
    assert plain(text) == "A c d. F G H j 2 K, l"


@given(st.text(max_size=80))
def test_text_without_markup_is_unchanged(text: str) -> None:
    if "[[" not in text and "{{" not in text:
        assert "".join(piece.text for piece in pieces(text)) == text


@given(text=st.text(min_size=1, max_size=600), word=st.text(min_size=1, max_size=8))
def test_snippet_is_part_of_the_text(text: str, word: str) -> None:
    shown = snippet(text, [word])
    assert len(shown) <= 184
    assert shown.removeprefix("… ").removesuffix(" …") in text


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(text=st.text(max_size=40), path=st.sampled_from(["/search", "/all", "/categories", "/category/Towns", "/"]))
def test_pages_survive_unusual_input(wiki: Any, text: str, path: str) -> None:
    params = {field: text.encode("utf-8", "replace").decode() for field in ("query", "page", "letter", "fulltext")}
    assert wiki.get(path, params=params).status_code < 500
