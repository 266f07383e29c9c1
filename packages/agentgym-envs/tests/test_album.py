from __future__ import annotations

from pathlib import Path

from agentgym_envs.album import Album


def test_a_picture_is_found_by_its_task_and_text(tmp_path: Path) -> None:
    album = Album(tmp_path / "made" / "later")
    assert album.find("a/1", "page") is None
    album.put("a/1", "page", b"one")
    album.put("a/2", "page", b"two")
    album.put("a/1", "page \ud800", b"odd")
    found = [album.find(*key) for key in (("a/1", "page"), ("a/2", "page"), ("a/1", "page \ud800"))]
    assert [path.read_bytes() for path in found if path] == [b"one", b"two", b"odd"]
    assert album.find("a/1", "other page") is None
    album.put("a/1", "page", b"newer")
    assert Album(album.folder).find("a/1", "page").read_bytes() == b"newer"  # type: ignore[union-attr]
