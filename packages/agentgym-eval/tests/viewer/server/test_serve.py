"""Tests of where the viewer stores its index."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentgym_eval.viewer.server.serve import open_index
from viewer_runs import episode, write_evaluation_run


def test_an_unusable_cache_is_replaced_by_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_evaluation_run(tmp_path / "runs/a", [episode()])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with open_index(tmp_path / "runs") as index:
        index.refresh()
    (database,) = (tmp_path / "cache").rglob("*.sqlite")
    database.write_bytes(b"damaged" * 1000)
    with open_index(tmp_path / "runs") as index:
        index.refresh()
        assert index.episodes_of("a") == 1
    assert not capsys.readouterr().err
    monkeypatch.setenv("XDG_CACHE_HOME", str(database))
    with open_index(tmp_path / "runs") as index:
        index.refresh()
        assert index.episodes_of("a") == 1
    assert "in a temporary folder, since the cache can't be used" in capsys.readouterr().err
