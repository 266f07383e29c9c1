"""Tests of the page of an episode in a real browser: going through a list, annotating."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.server.export import export
from playwright.sync_api import Page, expect
from viewer_browser import PHONE, WatchedPage, serve_index, width_of
from viewer_runs import EVIL, episode, write_evaluation_run


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    write_evaluation_run(tmp_path / "runs" / "eval", [episode(f"t/{n}", 0, n % 2 == 0) for n in range(6)])
    index = Index(tmp_path / "runs", tmp_path / "index.sqlite")
    index.refresh()
    yield index
    index.close()


def press(page: Page, key: str) -> None:
    """Press a key once the page of an episode has loaded its script."""
    expect(page.locator("#replay.replay")).to_be_visible()
    page.keyboard.press(key)


@pytest.mark.long
def test_keys_go_through_a_filtered_list(watched: WatchedPage, index: Index) -> None:
    page = watched.page
    page.set_viewport_size(PHONE)
    with serve_index(index) as live:
        page.goto(f"{live}/episodes?success=no&sort=-task")
        page.get_by_role("link", name="t/5").first.click()
        place = page.get_by_role("navigation", name="Episodes of the list")
        expect(place).to_contain_text("1 of 3")
        for key, text in (("n", "2 of 3"), ("n", "3 of 3"), ("n", "3 of 3"), ("p", "2 of 3")):
            press(page, key)
            expect(place).to_contain_text(text)
        assert width_of(page) <= PHONE["width"]
        place.get_by_role("link", name="matching episodes").click()
        expect(page.locator(".status")).to_contain_text("3 episodes")
        expect(page.get_by_label("Success")).to_have_value("no")
    assert watched.messages == []


def test_exported_episode_has_the_neighbours_of_its_file(watched: WatchedPage, index: Index, tmp_path: Path) -> None:
    export(index, tmp_path / "pages", 100)
    page = watched.page
    page.goto((tmp_path / "pages/episodes.html").as_uri())
    page.get_by_role("link", name="t/1").first.click()
    press(page, "n")
    expect(page.get_by_role("navigation", name="Episodes of the list")).to_contain_text("3 of 6")
    expect(page.locator("h1")).to_contain_text("success")
    assert watched.messages == []


@pytest.mark.long
def test_labels_and_a_note_are_given_by_keyboard(watched: WatchedPage, index: Index) -> None:
    page = watched.page
    page.set_viewport_size(PHONE)
    with serve_index(index) as live:
        page.goto(f"{live}/episode/eval/episodes/1?success=no&sort=task")
        press(page, "a")
        page.keyboard.type("loops, n p a")
        page.get_by_label("Note").fill(f"{EVIL}\n" + "unbreakable" * 30)
        page.get_by_role("button", name="Save").click()
        expect(page.locator("#annotation p")).to_contain_text(EVIL)
        press(page, "n")
        expect(page.locator(".neighbours")).to_contain_text("2 of 3")
        press(page, "a")
        page.get_by_label("loops").check()
        page.get_by_role("button", name="Save").click()
        expect(page.locator("#annotation .label")).to_have_text(["loops"])
        expect(page.get_by_role("navigation", name="Episodes of the list")).to_contain_text("2 of 3")
        assert width_of(page) <= PHONE["width"]
        page.goto(f"{live}/episodes")
        page.get_by_label("Label").select_option("loops")
        expect(page.locator(".status")).to_contain_text("2 episodes")
        assert width_of(page) <= PHONE["width"]
    assert watched.messages == []
