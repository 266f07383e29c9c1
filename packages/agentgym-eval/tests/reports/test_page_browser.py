"""Tests of the HTML report in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentgym_eval.metrics.comparison import compare
from agentgym_eval.metrics.summary import report
from agentgym_eval.reports import Evaluated, write_reports
from playwright.sync_api import Browser, Page
from report_episodes import BROKEN, EVIL, GOOD

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def report_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of two runs, one with a long name and one with markup in its name."""
    folder = tmp_path_factory.mktemp("report")
    names = (f"hf:runs/{'long-' * 12}name", EVIL)
    runs = [
        Evaluated(name, "w", report(episodes, ks=(1, 2, 4)), about={"settings": {"policy": name}})
        for name, episodes in zip(names, (GOOD, BROKEN), strict=True)
    ]
    return write_reports(folder, runs, [compare(GOOD, BROKEN, names=names)], title=EVIL)[0]


def test_page_loads_nothing_and_runs_no_injected_scripts(chromium: Browser, report_page: Path) -> None:
    page = chromium.new_page()
    requests, messages = list[str](), list[str]()
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: messages.append(message.text))
    page.on("dialog", lambda dialog: (messages.append(dialog.message), dialog.dismiss()))
    page.goto(report_page.as_uri())
    assert requests == [report_page.as_uri()]
    assert messages == []
    assert page.get_by_role("heading", level=1).inner_text() == EVIL
    assert page.get_by_role("img", name="pass@k and pass^k against k").is_visible()


@pytest.mark.parametrize("width", [360, 1280])
def test_page_fits_the_window_width(chromium: Browser, report_page: Path, width: int) -> None:
    page = chromium.new_page(viewport={"width": width, "height": 800})
    page.goto(report_page.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_page_follows_the_preferred_color_scheme(chromium: Browser, report_page: Path) -> None:
    backgrounds, texts = zip(*(_colors(chromium, report_page, scheme) for scheme in ("light", "dark")), strict=True)
    assert [_lightness(color) > 0.5 for color in backgrounds] == [True, False]
    assert [_lightness(color) > 0.5 for color in texts] == [False, True]


def _colors(chromium: Browser, report_page: Path, scheme: str) -> tuple[str, str]:
    """Return the colors of the background and of the text in a plot."""
    page: Page = chromium.new_page(color_scheme="dark" if scheme == "dark" else "light")
    page.goto(report_page.as_uri())
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return background, page.evaluate("getComputedStyle(document.querySelector('svg text')).fill")


def _lightness(color: str) -> float:
    """Return the lightness of `rgb(r, g, b)`, from 0 to 1."""
    return sum(map(int, color.removeprefix("rgb(").removesuffix(")").split(","))) / (3 * 255)


def test_plot_on_a_phone_keeps_its_size_and_scrolls(chromium: Browser, report_page: Path) -> None:
    page = chromium.new_page(viewport={"width": 360, "height": 800})
    page.goto(report_page.as_uri())
    plot = page.get_by_role("img", name="pass@k and pass^k against k")
    box = plot.bounding_box()
    assert box and box["width"] > 500
    assert plot.evaluate("svg => getComputedStyle(svg.parentElement).overflowX") == "auto"
    assert page.evaluate("document.documentElement.scrollWidth") == 360
