"""Tests of cache folders and of writing files atomically."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentgym_envs.util.files import cache_folder, write_whole

pytestmark = pytest.mark.quick


def test_cache_folder_is_created_or_the_error_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym_envs.util.files.user_cache_path", lambda name: tmp_path / name)
    assert cache_folder("a", "b") == cache_folder("a", "b") == tmp_path / "agentgym/a/b"
    assert cache_folder("a", "b").is_dir()
    (tmp_path / "agentgym/full").write_text("no folder")
    with pytest.raises(OSError, match=r"cache folder .*full/of .*can't be created.*XDG_CACHE_HOME"):
        cache_folder("full", "of")


@pytest.mark.parametrize(("content", "written"), [("Zürich\n", "Zürich\n".encode()), (b"\x00\xff", b"\x00\xff")])
def test_write_whole_replaces_a_file(tmp_path: Path, content: str | bytes, written: bytes) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    write_whole(file, content)
    assert file.read_bytes() == written
    assert list(tmp_path.iterdir()) == [file]


def test_failed_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    (tmp_path / "file/in").write_text("the way")
    with pytest.raises(OSError, match="file"):
        write_whole(tmp_path / "file", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
