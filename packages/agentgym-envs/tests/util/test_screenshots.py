from __future__ import annotations

from pathlib import Path

import pytest
from agentgym_envs.util.screenshots import ElementBoxes, ScreenshotStore


def test_a_picture_is_found_by_its_task_and_text(tmp_path: Path) -> None:
    album = ScreenshotStore(tmp_path / "made" / "later")
    assert album.find("a/1", "page") is None
    album.put("a/1", "page", b"one")
    album.put("a/2", "page", b"two")
    album.put("a/1", "page \ud800", b"odd")
    found = [album.find(*key) for key in (("a/1", "page"), ("a/2", "page"), ("a/1", "page \ud800"))]
    assert [path.read_bytes() for path in found if path] == [b"one", b"two", b"odd"]
    assert album.find("a/1", "other page") is None
    album.put("a/1", "page", b"newer")
    assert ScreenshotStore(album.folder).find("a/1", "page").read_bytes() == b"newer"  # type: ignore[union-attr]


def test_places_are_kept_with_a_picture(tmp_path: Path) -> None:
    album, places = ScreenshotStore(tmp_path), ElementBoxes(320, 240, {4: (1.0, 2.5, 30.0, 40.0)})
    album.put("a/1", "page", b"one", places)
    album.put("a/1", "another page", b"two")
    assert (album.places("a/1", "page"), album.places("a/1", "another page")) == (places, None)


@pytest.mark.parametrize(
    "written",
    ["{", "[]", '{"boxes": 3}', '{"boxes": {"a": [1, 2, 3, 4]}}', '{"boxes": {"4": [1]}, "width": 1, "height": 1}',
     '{"boxes": {"4": [1, 2, 3, 1e999]}, "width": 1, "height": 1}', '{"boxes": {}, "width": 1e999, "height": 1}'],
)  # fmt: skip
def test_damaged_places_are_none(tmp_path: Path, written: str) -> None:
    album = ScreenshotStore(tmp_path)
    album.put("a/1", "page", b"one", ElementBoxes(1, 1, {}))
    (path,) = tmp_path.glob("*.json")
    path.write_text(written)
    assert album.places("a/1", "page") is None
