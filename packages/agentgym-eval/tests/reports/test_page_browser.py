"""The page of a report in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentgym_eval.metrics.comparison import compare
from agentgym_eval.metrics.summary import report
from agentgym_eval.reports import Evaluated, write_reports
from playwright.sync_api import Browser, Page
from report_episodes import BROKEN, EVIL, GOOD  # the file beside this one

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two runs, whose names are long and evil."""
    folder = tmp_path_factory.mktemp("report")
    names = (f"hf:runs/{'long-' * 12}name", EVIL)
    runs = [
        Evaluated(name, "w", report(episodes, ks=(1, 2, 4)), about={"settings": {"policy": name}})
        for name, episodes in zip(names, (GOOD, BROKEN), strict=True)
    ]
    return write_reports(folder, runs, [compare(GOOD, BROKEN, names=names)], title=EVIL)[0]


def test_a_page_stands_alone_and_what_it_shows_does_nothing(chromium: Browser, written: Path) -> None:
    page = chromium.new_page()
    asked, said = list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    page.goto(written.as_uri())
    assert asked == [written.as_uri()]
    assert said == []
    assert page.get_by_role("heading", level=1).inner_text() == EVIL
    assert page.get_by_role("img", name="pass@k and pass^k against k").is_visible()


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_runs_out_of_the_window(chromium: Browser, written: Path, width: int) -> None:
    page = chromium.new_page(viewport={"width": width, "height": 800})
    page.goto(written.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_light_and_dark_are_the_reader_s(chromium: Browser, written: Path) -> None:
    grounds, inks = zip(*(_colours(chromium, written, scheme) for scheme in ("light", "dark")), strict=True)
    assert [_lightness(colour) > 0.5 for colour in grounds] == [True, False]
    assert [_lightness(colour) > 0.5 for colour in inks] == [False, True]


def _colours(chromium: Browser, written: Path, scheme: str) -> tuple[str, str]:
    """Of the ground, and of the words in a picture."""
    page: Page = chromium.new_page(color_scheme="dark" if scheme == "dark" else "light")
    page.goto(written.as_uri())
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return ground, page.evaluate("getComputedStyle(document.querySelector('svg text')).fill")


def _lightness(colour: str) -> float:
    """Of `rgb(r, g, b)`, from 0 to 1."""
    return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) / (3 * 255)


def test_a_picture_on_a_phone_keeps_its_size_and_scrolls(chromium: Browser, written: Path) -> None:
    page = chromium.new_page(viewport={"width": 360, "height": 800})
    page.goto(written.as_uri())
    picture = page.get_by_role("img", name="pass@k and pass^k against k")
    shown = picture.bounding_box()
    assert shown and shown["width"] > 500
    assert picture.evaluate("svg => getComputedStyle(svg.parentElement).overflowX") == "auto"
    assert page.evaluate("document.documentElement.scrollWidth") == 360
