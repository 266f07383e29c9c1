"""Tests of the viewer's layout on a phone, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentgym_eval.viewer.index.index import Index
from playwright.sync_api import Browser, Locator, Page
from viewer_browser import PHONE, serve_index, width_of
from viewer_runs import episode, write_evaluation_run

pytestmark = pytest.mark.long


@pytest.fixture
def live(tmp_path: Path) -> Iterator[str]:
    for number, name in enumerate(("textcraft-a-model-test", "textcraft-another-model-test")):
        tasks = ("textcraft/test/10001", "textcraft/test/polished_blackstone_button")
        episodes = [episode(task, sample, number > 0) for task in tasks for sample in range(2)]
        write_evaluation_run(tmp_path / "runs" / name, episodes)
    index = Index(tmp_path / "runs", tmp_path / "index.sqlite")
    index.refresh()
    with serve_index(index) as address:
        yield address
    index.close()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    with chromium.new_context() as context:
        page = context.new_page()
        page.set_viewport_size(PHONE)
        yield page


def box(element: Locator) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of an element."""
    rect = element.bounding_box()
    assert rect
    return rect["x"], rect["y"], rect["x"] + rect["width"], rect["y"] + rect["height"]


@pytest.mark.parametrize(
    ("path", "visible", "hidden"),
    [
        ("/", ("Run", "Success", "State", "Episodes"), ("Kind", "Environment", "Policy")),
        ("/episodes", ("Task", "Score", "Stop reason", "Failure cause"), ("Environment", "Category", "Policy", "Run")),
        ("/run/textcraft-a-model-test", ("File", "Episodes", "Success"), ("Phase", "Step", "Tasks", "Failed")),
        (
            "/compare?a=textcraft-a-model-test&b=textcraft-another-model-test",
            ("Task", "A", "B", "B − A, points"),
            ("Category",),
        ),
        (
            "/compare?run=textcraft-a-model-test&run=textcraft-another-model-test&baseline=textcraft-a-model-test",
            ("Run", "Success", "Difference"),
            (),
        ),
    ],
)
def test_tables_show_the_result_columns(
    live: str, page: Page, path: str, visible: tuple[str, ...], hidden: tuple[str, ...]
) -> None:
    page.goto(live + path)
    assert width_of(page) == PHONE["width"]
    headers = page.locator("table", has=page.locator("th", has_text=re.compile(f"^{visible[0]}"))).first.locator("th")
    names = [text.strip(" ↑↓\n") for text in headers.all_text_contents()]
    assert {*visible, *hidden} <= {*names}
    for name in visible:
        assert box(headers.nth(names.index(name)))[2] <= PHONE["width"]
    assert not any(headers.nth(names.index(name)).is_visible() for name in hidden)
    page.set_viewport_size({"width": 1280, "height": 800})
    assert all(headers.nth(names.index(name)).is_visible() for name in (*visible, *hidden))


@pytest.mark.parametrize(("path", "is_named"), [("/episodes", True), ("/episodes?run=textcraft-a-model-test", False)])
def test_run_of_an_episode_is_below_its_task(live: str, page: Page, path: str, is_named: bool) -> None:
    page.goto(live + path)
    below = page.locator("tbody tr", has_text="textcraft-a-model-test").locator("td:first-child .narrow").first
    assert below.is_visible() == is_named
    page.set_viewport_size({"width": 1280, "height": 800})
    assert not below.is_visible()


def test_long_names_widen_no_page(tmp_path: Path, page: Page) -> None:
    names = [f"{letter * 90}" for letter in "abc"]
    for name in names:
        write_evaluation_run(tmp_path / "runs" / name, [episode(f"t/{name}{n}"[:60], 0, n > 1) for n in range(3)])
    index = Index(tmp_path / "runs", tmp_path / "index.sqlite")
    index.refresh()
    a, b, c = (run.slug for run in index.runs)
    with serve_index(index) as address:
        for path in (f"/compare?a={a}&b={b}", f"/compare?run={a}&run={b}&run={c}", f"/run/{a}/edit", f"/run/{a}"):
            page.goto(address + path)
            assert width_of(page) == PHONE["width"], path
    index.close()


def test_navigation_links_are_in_one_row(live: str, page: Page) -> None:
    page.goto(live)
    links = page.get_by_role("navigation", name="Pages").get_by_role("link").all()
    assert len(links) == 5
    assert len({box(link)[1] for link in links}) == 1
    assert box(page.locator(".brand"))[3] <= box(links[0])[1]


def test_task_numbers_are_not_wrapped(live: str, page: Page) -> None:
    page.goto(f"{live}/episodes")
    rects = page.get_by_role("link", name="textcraft/test/10001").first.evaluate(
        "link => { const range = document.createRange(); range.selectNodeContents(link.lastChild);"
        " return [link.lastChild.textContent, range.getClientRects().length]; }"
    )
    assert rects == ["10001", 1]


def test_radio_buttons_are_aligned_with_their_labels(live: str, page: Page) -> None:
    page.goto(f"{live}/play")
    for label in page.locator(".worlds label").all():
        _, top, _, bottom = box(label.locator("strong"))
        _, radio_top, _, radio_bottom = box(label.get_by_role("radio"))
        assert abs((top + bottom) / 2 - (radio_top + radio_bottom) / 2) <= 3
        assert radio_bottom - radio_top < 24
