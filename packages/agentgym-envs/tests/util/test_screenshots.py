"""Tests of the screenshot store."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentgym_envs.util.screenshots import ElementBoxes, ScreenshotStore


def test_screenshot_is_found_by_its_task_and_text(tmp_path: Path) -> None:
    store = ScreenshotStore(tmp_path / "made" / "later")
    assert store.find("a/1", "page") is None
    store.put("a/1", "page", b"one")
    store.put("a/2", "page", b"two")
    store.put("a/1", "page \ud800", b"odd")
    found = [store.find(*key) for key in (("a/1", "page"), ("a/2", "page"), ("a/1", "page \ud800"))]
    assert [path.read_bytes() for path in found if path] == [b"one", b"two", b"odd"]
    assert store.find("a/1", "other page") is None
    store.put("a/1", "page", b"newer")
    assert ScreenshotStore(store.folder).find("a/1", "page").read_bytes() == b"newer"  # type: ignore[union-attr]


def test_element_boxes_are_stored_with_a_screenshot(tmp_path: Path) -> None:
    store, boxes = ScreenshotStore(tmp_path), ElementBoxes(320, 240, {4: (1.0, 2.5, 30.0, 40.0)})
    store.put("a/1", "page", b"one", boxes)
    store.put("a/1", "another page", b"two")
    assert (store.places("a/1", "page"), store.places("a/1", "another page")) == (boxes, None)


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"boxes": 3}', '{"boxes": {"a": [1, 2, 3, 4]}}', '{"boxes": {"4": [1]}, "width": 1, "height": 1}',
     '{"boxes": {"4": [1, 2, 3, 1e999]}, "width": 1, "height": 1}', '{"boxes": {}, "width": 1e999, "height": 1}'],
)  # fmt: skip
def test_damaged_element_boxes_are_ignored(tmp_path: Path, content: str) -> None:
    store = ScreenshotStore(tmp_path)
    store.put("a/1", "page", b"one", ElementBoxes(1, 1, {}))
    (path,) = tmp_path.glob("*.json")
    path.write_text(content)
    assert store.places("a/1", "page") is None
