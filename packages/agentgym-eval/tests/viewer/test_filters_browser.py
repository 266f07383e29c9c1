"""Tests of list filters in a real browser; those of runs behave alike live and exported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.server.export import export
from playwright.sync_api import Page, expect
from viewer_browser import PHONE, WatchedPage, serve_index, width_of
from viewer_runs import EVIL, episode, write_episodes, write_evaluation_run, write_training_run

pytestmark = pytest.mark.long


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    runs = tmp_path / "runs"
    write_evaluation_run(runs / "poor", [episode(f"t/{n}", 0, n < 1) for n in range(4)])
    write_evaluation_run(runs / "good", [episode(f"t/{n}", env="agentgym/Far-v0") for n in range(4)])
    write_evaluation_run(runs / "none", [], done=False)
    write_training_run(runs / "rl")
    os.utime(write_episodes(runs / "evil.jsonl", [episode(EVIL, policy=EVIL, reply=EVIL)]), (86_400, 86_400))
    index = Index(runs, tmp_path / "index.sqlite")
    index.refresh()
    yield index
    index.close()


@pytest.fixture(params=["live", "exported"])
def site(request: pytest.FixtureRequest, index: Index, tmp_path: Path) -> Iterator[str]:
    """Yield the base address of a live or an exported viewer."""
    if request.param == "live":
        with serve_index(index) as address:
            yield f"{address}/"
    else:
        export(index, tmp_path / "pages", 1000)
        yield f"{(tmp_path / 'pages').as_uri()}/"


@pytest.fixture
def page(watched: WatchedPage, site: str) -> Iterator[Page]:
    """Open the list of runs on a phone; after the test, check layout, requests and console messages."""
    page = watched.page
    page.set_viewport_size(PHONE)
    page.goto(f"{site}index.html" if site.startswith("file:") else site)
    yield page
    assert width_of(page) <= PHONE["width"]
    assert [url for url in watched.requests if not url.startswith(site)] == []
    assert watched.messages == []


def test_filters_of_runs_are_kept_in_the_address(page: Page) -> None:
    status = page.locator(".status")
    expect(status).to_have_text("5 of 5 runs")
    for label, value, count in (("Kind", "evaluate", 3), ("Environment", "agentgym/Far-v0", 1), ("Environment", "", 3)):
        page.get_by_label(label).select_option(value)
        expect(status).to_have_text(f"{count} of 5 runs")
    for label, text, count in (("Text", "OO", 2), ("Success from", "40", 1), ("to", "99", 0), ("to", "", 1)):
        page.get_by_label(label, exact=True).fill(text)
        expect(status).to_have_text(f"{count} of 5 runs")
    expect(page.locator("tbody tr")).to_contain_text("good")
    page.goto(page.url)
    expect(status).to_have_text("1 of 5 runs")
    expect(page.get_by_label("Kind")).to_have_value("evaluate")
    with page.expect_navigation():
        page.get_by_role("link", name="Clear").click()
    expect(status).to_have_text("5 of 5 runs")
    page.get_by_role("combobox", name="Policy").select_option(EVIL)
    expect(status).to_have_text("1 of 5 runs")


def test_runs_are_sorted_by_keyboard_and_filtered(page: Page) -> None:
    first = page.locator("tbody tr").first
    header = page.locator("th", has=page.get_by_role("link", name="Began"))
    expect(header).to_have_attribute("aria-sort", "descending")
    expect(first).not_to_contain_text("evil")
    for order in ("ascending", "descending"):
        header.get_by_role("link").press("Enter")
        expect(header).to_have_attribute("aria-sort", order)
        expect(page.locator("tr", has_text="evil.jsonl")).to_be_visible()
    expect(first).not_to_contain_text("evil")
    page.locator("th").get_by_role("link", name="Run").press("Enter")
    expect(first).to_contain_text("evil.jsonl")
    page.locator("th").get_by_role("link", name="Success").press("Enter")
    expect(first).to_contain_text("100.0%")
    expect(page.locator("tbody tr").last).to_contain_text("none")
    # The link opened a new page, which ignores selections until htmx has started.
    expect(page.locator("form.filters[data-htmx-powered], form.filters:not([hx-get])")).to_be_visible()
    page.get_by_label("Kind").select_option("train")
    expect(page.locator(".status")).to_have_text("1 of 5 runs")
    assert "sort=-success" in page.url


def test_filtered_list_follows_the_folder_and_keeps_the_focus(watched: WatchedPage, index: Index) -> None:
    with serve_index(index) as address:
        page = watched.page
        page.goto(f"{address}/?text=jsonl")
        expect(page.locator(".status")).to_have_text("1 of 5 runs")
        page.evaluate("window.same = document.querySelector('tbody tr')")
        page.get_by_label("Text").focus()
        write_episodes(index.root / "more.jsonl", [episode()])
        expect(page.locator(".status")).to_have_text("2 of 6 runs")
        expect(page.locator("tbody tr").first).to_contain_text("more.jsonl")
        assert page.evaluate("window.same.isConnected")
        assert page.evaluate("document.activeElement.name") == "text"
        page.get_by_label("Text").fill("more")
        expect(page.locator(".status")).to_have_text("1 of 6 runs")


def test_search_results_link_to_the_matching_turn(watched: WatchedPage, index: Index) -> None:
    with serve_index(index) as address:
        page = watched.page
        page.goto(f"{address}/episodes?text=end&run=poor")
        expect(page.locator("mark").first).to_have_text("end")
        page.locator("tbody tr a").first.click()
        expect(page.locator("#turn-2")).to_be_visible()
        expect(page.locator("#turn-0")).to_be_hidden()
