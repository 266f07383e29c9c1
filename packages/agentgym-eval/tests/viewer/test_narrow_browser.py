"""Tests of the viewer's layout on a phone, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agentgym_eval.viewer.index.index import Index
from playwright.sync_api import Browser, Locator, Page
from viewer_browser import PHONE, serve_index
from viewer_runs import episode, write_evaluation_run

pytestmark = pytest.mark.long


@pytest.fixture
def live(tmp_path: Path) -> Iterator[str]:
    write_evaluation_run(
        tmp_path / "runs" / "textcraft-a-model-test", [episode("textcraft/test/10001", n) for n in range(2)]
    )
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
        ("/", ("Success", "State"), ("Environment",)),
        ("/episodes", ("Score", "Stop reason"), ("Environment", "Category")),
    ],
)
def test_lists_show_the_result_columns(
    live: str, page: Page, path: str, visible: tuple[str, ...], hidden: tuple[str, ...]
) -> None:
    page.goto(live + path)
    headers = page.get_by_role("columnheader")
    names = [text.strip(" ↑↓\n") for text in headers.all_inner_texts()]
    for name in visible:
        assert box(headers.nth(names.index(name)))[2] <= PHONE["width"]
    assert not set(hidden) & {name for i, name in enumerate(names) if headers.nth(i).is_visible()}
    page.set_viewport_size({"width": 1280, "height": 800})
    assert all(page.locator("th", has_text=name).is_visible() for name in (*visible, *hidden))


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
