"""Tests of the screenshot store."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentgym_envs.util.images import pixels
from agentgym_envs.util.screenshots import ElementBoxes, Picture, ScreenshotStore, element_boxes


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


def test_relative_folder_is_that_of_the_working_directory_at_creation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = ScreenshotStore("pictures")
    monkeypatch.chdir("/")
    store.put("a/1", "page", b"one")
    assert store.find("a/1", "page") == next((tmp_path / "pictures").iterdir())


def test_element_boxes_are_stored_with_a_screenshot(tmp_path: Path) -> None:
    store, boxes = ScreenshotStore(tmp_path), ElementBoxes(320, 240, {"4": (1.0, 2.5, 30.0, 40.0)})
    store.put("a/1", "page", b"one", boxes)
    store.put("a/1", "another page", b"two")
    one, two = store.find("a/1", "page"), store.find("a/1", "another page")
    assert one and two
    assert (element_boxes(one), element_boxes(two)) == (boxes, None)


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
    assert element_boxes(path.with_suffix(".png")) is None


PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def test_picture_of_an_info_is_stored_under_its_digest(tmp_path: Path) -> None:
    store, info = ScreenshotStore(tmp_path), {"screenshot": PIXELS, "element_boxes": {"7": [1.0, 0.0, 4.0, 3.0]}}
    picture = Picture.of(info)
    assert picture is not None
    assert store.get(picture.digest) is None
    store.add(picture)
    store.add(picture)
    path = store.get(picture.digest)
    assert path is not None
    assert np.array_equal(pixels(path.read_bytes()), PIXELS)
    assert element_boxes(path) == ElementBoxes(6, 4, {"7": (1.0, 0.0, 4.0, 3.0)})
    assert picture.url == f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def test_digest_depends_on_pixels_and_boxes() -> None:
    other = PIXELS.copy()
    other[3, 5, 2] += 1
    infos: list[dict[str, Any]] = [
        {"screenshot": PIXELS},
        {"screenshot": other},
        {"screenshot": PIXELS, "element_boxes": {"7": [1, 0, 4, 3]}},
        {"screenshot": PIXELS, "element_boxes": {"8": [1, 0, 4, 3]}},
    ]
    assert len({picture.digest for info in infos if (picture := Picture.of(info))}) == 4
    assert Picture.of(infos[0]) == Picture.of({"screenshot": PIXELS.copy()})
    assert Picture.of({}) is None


@pytest.mark.parametrize("digest", ["../secret", "/etc/passwd", "", "0" * 31, "0" * 33, "A" * 32, None])
def test_foreign_digests_name_no_file(tmp_path: Path, digest: str | None) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    for name in ("0" * 31, "0" * 33, "A" * 32):
        (tmp_path / "pictures").mkdir(exist_ok=True)
        (tmp_path / "pictures" / f"{name}.png").write_bytes(b"other")
    assert ScreenshotStore(tmp_path / "pictures").get(digest) is None
