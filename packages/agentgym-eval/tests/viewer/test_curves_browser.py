"""Tests of the curves of several runs in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentgym_eval.viewer.index.index import Index
from playwright.sync_api import Browser, Page, expect
from viewer_browser import PHONE, WatchedPage, serve_index, width_of
from viewer_runs import EVIL, write_training_run

pytestmark = pytest.mark.long


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    for name in ("a", "b", f"{'long' * 20} <i>x"):
        write_training_run(tmp_path / "runs" / name)
    index = Index(tmp_path / "runs", tmp_path / "index.sqlite")
    index.refresh()
    yield index
    index.close()


@pytest.fixture
def page(chromium: Browser, index: Index) -> Iterator[Page]:
    """Select all runs in the list and open their curves, each as a line; then check requests and console messages."""
    with serve_index(index) as address, chromium.new_context() as context:
        watched = WatchedPage(context.new_page())
        watched.page.goto(address)
        for box in watched.page.get_by_role("checkbox").all():
            box.check()
        watched.page.get_by_role("button", name="Curves", exact=True).click()
        expect(watched.page.locator(".curve").first).to_be_visible()
        yield watched.page
        assert [url for url in watched.requests if not url.startswith(address)] == []
        assert [each for each in watched.messages if "404" not in each] == []  # of a deleted run


def test_pointer_shows_the_values_and_the_legend_hides_lines(page: Page) -> None:
    chart = page.locator(".curve", has_text="loss").first
    chart.locator("svg").hover(position={"x": 60, "y": 60})
    readout = chart.locator(".readout")
    expect(readout).to_contain_text("training step 1")
    expect(readout.locator("div")).to_have_count(3)
    page.locator(".swatch").first.click()
    chart.locator("svg").hover(position={"x": 60, "y": 60})
    expect(chart.locator(".readout div")).to_have_count(2)
    expect(chart.locator("g[data-line]:visible")).to_have_count(2)


def test_smoothing_and_search_update_the_page_and_its_address(page: Page) -> None:
    page.get_by_label("Smoothing").fill("0.6")
    expect(page.locator(".raw").first).to_be_attached()
    assert "smooth=0.6" in page.url
    page.get_by_label("Metrics").fill("loss")
    expect(page.locator(".curve")).to_have_count(1)
    assert "metric=loss" in page.url


def test_new_steps_appear_without_reload_and_hidden_lines_stay_hidden(page: Page, index: Index) -> None:
    page.locator(".swatch").first.click()
    lines = page.locator(".curve", has_text="loss").first.locator("g[data-line]")
    expect(lines.nth(0)).to_have_class("c0 d0 off")
    with (index.root / "b" / "metrics.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"step": 9, "loss": 0.1, EVIL: 1}) + "\n")
    expect(page.locator(".curve figcaption", has_text=EVIL)).to_be_attached()
    expect(lines.nth(0)).to_have_class("c0 d0 off")


def test_page_fits_a_phone(page: Page) -> None:
    page.set_viewport_size(PHONE)
    assert width_of(page) <= PHONE["width"]


def test_small_charts_of_a_run_are_searched_and_smoothed_in_place(page: Page, index: Index) -> None:
    page.goto(page.url.partition("/curves")[0] + "/run/a")
    page.get_by_text("More metrics").click()
    page.get_by_label("Metrics", exact=True).last.fill("stage")
    expect(page.locator(".curve")).to_have_count(2)
    page.get_by_label("Smoothing").fill("0.6")
    expect(page.locator(".raw")).to_have_count(2)
    assert "smooth=0.6" in page.url and "metric=stage" in page.url
    with (index.root / "a" / "metrics.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"step": 9, "stage": {"number": 7}}) + "\n")
    expect(page.locator(".curve", has_text="stage.number").locator("[data-line]")).to_have_attribute(
        "data-x", "1 2 3 4 9"
    )
    expect(page.locator(".raw")).to_have_count(2)


def test_page_of_a_run_that_was_deleted_says_so(page: Page, index: Index) -> None:
    page.goto(page.url.partition("/curves")[0] + "/run/a")
    expect(page.locator(".chart")).to_be_visible()
    (index.root / "a").rename(index.root.parent / "elsewhere")
    expect(page.get_by_text("There is no run a below")).to_be_visible()
    page.get_by_role("link", name="All runs").click()
    expect(page.locator(".status")).to_have_text("2 of 2 runs")


def test_run_is_named_and_stays_while_it_is_running(page: Page) -> None:
    base = page.url.partition("/curves")[0]
    page.goto(f"{base}/run/a/edit")
    page.get_by_label("Name").fill(EVIL)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(EVIL)
    page.goto(f"{base}/run/a/edit")
    expect(page.locator("main")).to_contain_text("is running; stop it first")
