"""What a phone shows of the viewer without scrolling sideways, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agentgym_eval.viewer.index.index import Index
from playwright.sync_api import Browser, Locator, Page
from viewer_browser import PHONE, served
from viewer_runs import episode, evaluate  # the file beside this one

pytestmark = pytest.mark.long


@pytest.fixture
def live(tmp_path: Path) -> Iterator[str]:
    evaluate(tmp_path / "runs" / "textcraft-a-model-test", [episode("textcraft/test/10001", n) for n in range(2)])
    index = Index(tmp_path / "runs", tmp_path / "index.sqlite")
    index.refresh()
    with served(index) as address:
        yield address
    index.close()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    with chromium.new_context() as context:
        page = context.new_page()
        page.set_viewport_size(PHONE)
        yield page


def box(element: Locator) -> tuple[float, float, float, float]:
    """Left, top, right, bottom."""
    found = element.bounding_box()
    assert found
    return found["x"], found["y"], found["x"] + found["width"], found["y"] + found["height"]


@pytest.mark.parametrize(
    ("path", "seen", "hidden"),
    [
        ("/", ("Success", "State"), ("Environment",)),
        ("/episodes", ("Score", "Stop reason"), ("Environment", "Category")),
    ],
)
def test_lists_show_what_was_reached(
    live: str, page: Page, path: str, seen: tuple[str, ...], hidden: tuple[str, ...]
) -> None:
    page.goto(live + path)
    heads = page.get_by_role("columnheader")
    shown = [text.strip(" ↑↓\n") for text in heads.all_inner_texts()]
    for name in seen:
        assert box(heads.nth(shown.index(name)))[2] <= PHONE["width"]
    assert not set(hidden) & {name for at, name in enumerate(shown) if heads.nth(at).is_visible()}
    page.set_viewport_size({"width": 1280, "height": 800})
    assert all(page.locator("th", has_text=name).is_visible() for name in (*seen, *hidden))


def test_the_pages_names_stand_in_one_row(live: str, page: Page) -> None:
    page.goto(live)
    links = page.get_by_role("navigation", name="Pages").get_by_role("link").all()
    assert len(links) == 4
    assert len({box(link)[1] for link in links}) == 1
    assert box(page.locator(".brand"))[3] <= box(links[0])[1]


def test_a_task_s_number_is_not_broken(live: str, page: Page) -> None:
    page.goto(f"{live}/episodes")
    rects = page.get_by_role("link", name="textcraft/test/10001").first.evaluate(
        "link => { const range = document.createRange(); range.selectNodeContents(link.lastChild);"
        " return [link.lastChild.textContent, range.getClientRects().length]; }"
    )
    assert rects == ["10001", 1]


def test_radio_buttons_stand_beside_their_names(live: str, page: Page) -> None:
    page.goto(f"{live}/play")
    for label in page.locator(".worlds label").all():
        _, top, _, bottom = box(label.locator("strong"))
        _, above, _, below = box(label.get_by_role("radio"))
        assert abs((top + bottom) / 2 - (above + below) / 2) <= 3
        assert below - above < 24
