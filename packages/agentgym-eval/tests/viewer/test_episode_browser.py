"""Tests of the page of an episode in a real browser: going through a list."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.server.export import export
from playwright.sync_api import Browser, expect
from viewer_browser import PHONE, WatchedPage, serve_index
from viewer_runs import episode, write_evaluation_run


@pytest.fixture
def watched(chromium: Browser) -> Iterator[WatchedPage]:
    with chromium.new_context() as context:
        yield WatchedPage(context.new_page())


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    write_evaluation_run(tmp_path / "runs" / "eval", [episode(f"t/{n}", 0, n % 2 == 0) for n in range(6)])
    index = Index(tmp_path / "runs", tmp_path / "index.sqlite")
    index.refresh()
    yield index
    index.close()


def test_keys_go_through_a_filtered_list(watched: WatchedPage, index: Index) -> None:
    page = watched.page
    page.set_viewport_size(PHONE)
    with serve_index(index) as live:
        page.goto(f"{live}/episodes?success=no&sort=-task")
        page.get_by_role("link", name="t/5").first.click()
        place = page.get_by_role("navigation", name="Episodes of the list")
        for key, text in (("n", "2 of 3"), ("n", "3 of 3"), ("n", "3 of 3"), ("p", "2 of 3")):
            page.keyboard.press(key)
            expect(place).to_contain_text(text)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        place.get_by_role("link", name="matching episodes").click()
        expect(page.locator(".status")).to_contain_text("3 episodes")
        expect(page.get_by_label("Success")).to_have_value("no")
    assert watched.messages == []


def test_exported_episode_has_the_neighbours_of_its_file(watched: WatchedPage, index: Index, tmp_path: Path) -> None:
    export(index, tmp_path / "pages", 100)
    page = watched.page
    page.goto((tmp_path / "pages/episodes.html").as_uri())
    page.get_by_role("link", name="t/1").first.click()
    page.keyboard.press("n")
    expect(page.get_by_role("navigation", name="Episodes of the list")).to_contain_text("3 of 6")
    expect(page.locator("h1")).to_contain_text("success")
    assert watched.messages == []
