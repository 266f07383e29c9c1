"""Tests of actions on selected runs in a real browser: tags, comparisons, and the trash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.trash import TRASH
from playwright.sync_api import Browser, Page, expect
from viewer_browser import PHONE, WatchedPage, serve_index, width_of
from viewer_runs import episode, write_evaluation_run

pytestmark = pytest.mark.long
NAMES = ("base", "mid", "top")


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    for level, name in enumerate(NAMES):
        episodes = [episode(f"t/{n}", 0, n % 4 <= level, category="even" if n % 2 else "odd") for n in range(12)]
        write_evaluation_run(tmp_path / "runs" / name, episodes)
    index = Index(tmp_path / "runs", tmp_path / "index.sqlite")
    index.refresh()
    yield index
    index.close()


@pytest.fixture
def live(index: Index) -> Iterator[str]:
    with serve_index(index) as address:
        yield address


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, watched: WatchedPage, live: str) -> Iterator[Page]:
    """Open the list of runs on a phone; after the test, check its width and console messages."""
    page = watched.page
    page.emulate_media(color_scheme=request.param)
    page.set_viewport_size(PHONE)
    page.goto(live)
    yield page
    assert width_of(page) <= PHONE["width"]
    assert watched.messages == []


def select(page: Page, *names: str) -> None:
    for name in names:
        page.get_by_role("checkbox", name=f"Select {name}").check()


def chosen(page: Page) -> list[str]:
    boxes = page.locator("input[name=run]:checked")
    return sorted(box.get_attribute("value") or "" for box in boxes.all())


def test_tag_of_selected_runs_keeps_the_selection(page: Page) -> None:
    select(page, "base", "top")
    expect(page.locator("#select-all + output")).to_have_text("2 selected")
    page.get_by_label("Tag of the selected runs").fill("seeds")
    page.get_by_role("button", name="Add tag").click()
    chips = page.locator("tbody").get_by_role("link", name="seeds")
    expect(chips).to_have_count(2)
    assert chosen(page) == ["base", "top"]
    page.locator("select[name=tag]").select_option("seeds")
    expect(page.locator(".status")).to_have_text("2 of 3 runs")
    page.get_by_role("button", name="Clear").or_(page.get_by_role("link", name="Clear")).click()
    chips.first.click()
    expect(page.locator(".status")).to_have_text("2 of 3 runs")
    assert page.url.endswith("/?tag=seeds")
    select(page, "base")
    page.get_by_label("Tag of the selected runs").fill("seeds")
    page.get_by_role("button", name="Remove tag").click()
    expect(page.locator(".status")).to_have_text("1 of 3 runs")
    assert page.url.endswith("/?tag=seeds")


def test_tags_are_changed_on_the_page_of_a_run(page: Page) -> None:
    page.get_by_role("link", name="mid").click()
    page.get_by_label("New tag").fill("one, two")
    page.get_by_role("button", name="Add tag").click()
    expect(page.locator(".tags a")).to_have_text(["one", "two"])
    page.get_by_role("button", name="Remove the tag one").click()
    expect(page.locator(".tags a")).to_have_text(["two"])


def test_selected_runs_are_compared_in_a_table_with_a_clean_address(page: Page, live: str) -> None:
    page.locator("#select-all").check()
    page.get_by_label("Tag of the selected runs").fill("typed")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("heading", name="Compare runs")).to_be_visible()
    assert sorted(page.url.removeprefix(f"{live}/compare?").split("&")) == ["run=base", "run=mid", "run=top"]
    assert page.locator("tbody").first.locator("tr").count() == 3
    row = page.locator("tr", has=page.get_by_role("link", name="mid", exact=True)).first
    row.get_by_role("link", name="Make baseline").click()
    expect(row).to_contain_text("mid baseline")
    assert page.url.endswith("baseline=mid")
    expect(page.get_by_role("heading", name="Success by category")).to_be_visible()
    page.get_by_text("Runs (3 of 3)").click()
    page.get_by_role("checkbox", name="top").uncheck()
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_text("Runs (2 of 3)")).to_be_visible()


def test_selected_runs_are_moved_to_the_trash_restored_and_deleted(page: Page, index: Index) -> None:
    select(page, "base", "mid")
    page.get_by_role("button", name="Move to the trash").click()
    page.get_by_role("button", name="Move 2 runs to the trash").click()
    expect(page.get_by_role("heading", name="Trash")).to_be_visible()
    page.get_by_role("row", name="base").get_by_role("button", name="Restore").click()
    expect(page.locator(".status")).to_have_text("2 of 2 runs")
    page.get_by_role("link", name="Trash").click()
    page.get_by_role("link", name="Empty the trash").click()
    page.get_by_role("link", name="Cancel").click()
    assert (index.root / TRASH).exists()
    page.get_by_role("link", name="Empty the trash").click()
    page.get_by_role("button", name="Delete 1 run for good").click()
    expect(page.get_by_text("The trash is empty.")).to_be_visible()
    assert not (index.root / TRASH).exists() and (index.root / "base").exists()


def test_actions_work_without_javascript(chromium: Browser, live: str) -> None:
    with chromium.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(live)
        select(page, "base", "mid", "top")
        page.get_by_label("Tag of the selected runs").fill("plain")
        page.get_by_role("button", name="Add tag").click()
        expect(page.locator("tbody").get_by_role("link", name="plain")).to_have_count(3)
        select(page, "base", "mid", "top")
        page.get_by_role("button", name="Compare").click()
        expect(page.get_by_role("heading", name="Compare runs")).to_be_visible()
