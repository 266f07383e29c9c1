"""Filters of lists in a real browser; of runs live and exported, where the same steps lead to the same rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.server.export import export
from playwright.sync_api import Browser, Page, expect
from viewer_browser import PHONE, Watched, served
from viewer_runs import EVIL, episode, evaluate, train, write

pytestmark = pytest.mark.long


@pytest.fixture
def watched(chromium: Browser) -> Iterator[Watched]:
    with chromium.new_context() as context:
        yield Watched(context.new_page())


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    runs = tmp_path / "runs"
    evaluate(runs / "poor", [episode(f"t/{n}", 0, n < 1) for n in range(4)])
    evaluate(runs / "good", [episode(f"t/{n}", env="agentgym/Far-v0") for n in range(4)])
    evaluate(runs / "none", [], done=False)
    train(runs / "rl")
    os.utime(write(runs / "evil.jsonl", [episode(EVIL, policy=EVIL, said=EVIL)]), (86_400, 86_400))
    index = Index(runs, tmp_path / "index.sqlite")
    index.refresh()
    yield index
    index.close()


@pytest.fixture(params=["live", "exported"])
def site(request: pytest.FixtureRequest, index: Index, tmp_path: Path) -> Iterator[str]:
    """The address that all pages have in common."""
    if request.param == "live":
        with served(index) as address:
            yield f"{address}/"
    else:
        export(index, tmp_path / "pages", 1000)
        yield f"{(tmp_path / 'pages').as_uri()}/"


@pytest.fixture
def page(watched: Watched, site: str) -> Iterator[Page]:
    """The list of runs on a phone; at the end nothing was asked for elsewhere, and nothing was run that was shown."""
    page = watched.page
    page.set_viewport_size(PHONE)
    page.goto(f"{site}index.html" if site.startswith("file:") else site)
    yield page
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert [url for url in watched.asked if not url.startswith(site)] == []
    assert watched.said == []


def test_runs_are_filtered_and_the_address_keeps_it(page: Page) -> None:
    status = page.locator(".status")
    expect(status).to_have_text("5 of 5 runs")
    for label, value, found in (("Kind", "evaluate", 3), ("Environment", "agentgym/Far-v0", 1), ("Environment", "", 3)):
        page.get_by_label(label).select_option(value)
        expect(status).to_have_text(f"{found} of 5 runs")
    for label, words, found in (("Text", "OO", 2), ("Success from", "40", 1), ("to", "99", 0), ("to", "", 1)):
        page.get_by_label(label, exact=True).fill(words)
        expect(status).to_have_text(f"{found} of 5 runs")
    expect(page.locator("tbody tr")).to_contain_text("good")
    page.goto(page.url)
    expect(status).to_have_text("1 of 5 runs")
    expect(page.get_by_label("Kind")).to_have_value("evaluate")
    page.get_by_role("link", name="Clear").click()
    expect(status).to_have_text("5 of 5 runs")
    page.get_by_label("Policy").select_option(EVIL)
    expect(status).to_have_text("1 of 5 runs")


def test_runs_are_sorted_by_keyboard_under_a_filter(page: Page) -> None:
    first = page.locator("tbody tr").first
    head = page.locator("th", has=page.get_by_role("link", name="Began"))
    expect(head).to_have_attribute("aria-sort", "descending")
    expect(first).not_to_contain_text("evil")
    for order in ("ascending", "descending"):
        head.get_by_role("link").press("Enter")
        expect(head).to_have_attribute("aria-sort", order)
        expect(page.locator("tr", has_text="evil.jsonl")).to_be_visible()
    expect(first).not_to_contain_text("evil")
    page.locator("th").get_by_role("link", name="Run").press("Enter")
    expect(first).to_contain_text("evil.jsonl")
    page.locator("th").get_by_role("link", name="Success").press("Enter")
    expect(first).to_contain_text("100.0%")
    expect(page.locator("tbody tr").last).to_contain_text("none")
    # The link led to a new page, where a choice before htmx has started goes unheard.
    expect(page.locator("form.filters[data-htmx-powered], form.filters:not([hx-get])")).to_be_visible()
    page.get_by_label("Kind").select_option("train")
    expect(page.locator(".status")).to_have_text("1 of 5 runs")
    assert "sort=-success" in page.url


def test_a_filtered_list_follows_the_folder_and_leaves_the_reader_alone(watched: Watched, index: Index) -> None:
    with served(index) as address:
        page = watched.page
        page.goto(f"{address}/?text=jsonl")
        expect(page.locator(".status")).to_have_text("1 of 5 runs")
        page.evaluate("window.same = document.querySelector('tbody tr')")
        page.get_by_label("Text").focus()
        write(index.root / "more.jsonl", [episode()])
        expect(page.locator(".status")).to_have_text("2 of 6 runs")
        expect(page.locator("tbody tr").first).to_contain_text("more.jsonl")
        assert page.evaluate("window.same.isConnected")
        assert page.evaluate("document.activeElement.name") == "text"
        page.get_by_label("Text").fill("more")
        expect(page.locator(".status")).to_have_text("1 of 6 runs")


def test_a_search_leads_to_the_turn_with_the_words(watched: Watched, index: Index) -> None:
    with served(index) as address:
        page = watched.page
        page.goto(f"{address}/episodes?text=end&run=poor")
        expect(page.locator("mark").first).to_have_text("end")
        page.locator("tbody tr a").first.click()
        expect(page.locator("#turn-2")).to_be_visible()
        expect(page.locator("#turn-0")).to_be_hidden()
