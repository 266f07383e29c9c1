"""Tests of the flags of `view`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from agentgym_eval.cli.view import view
from agentgym_eval.viewer.server import serve

pytestmark = pytest.mark.quick


def test_the_default_folder_need_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(serve, "serve", lambda directory, *_, **__: served.append(directory) or 0)
    assert [view([]), view(["runs"])] == [0, 0]
    assert served == [Path("runs")] * 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["runz"], "There is no file or folder runz. Did you mean runs? Name a folder with runs of train, evaluate"),
        (["no/such/folder"], "There is no file or folder no/such/folder. Name a folder with runs of train, evaluate"),
        (["nothing", "--export", "pages"], "There is no file or folder nothing."),
    ],
)
def test_other_missing_folders_are_an_error(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert view(arguments) == 2
    assert capsys.readouterr().err.startswith(f"view: {sentence}")


def test_an_export_needs_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert view(["--export", "pages"]) == 2
    assert capsys.readouterr().err.startswith("view: There is no file or folder runs.")
    assert list(tmp_path.iterdir()) == []
