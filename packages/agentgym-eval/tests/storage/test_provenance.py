"""What a run's folder says of its beginning."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from agentgym_eval.storage import provenance as room
from agentgym_eval.storage.provenance import git_state, provenance, versions


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit and one file in it."""
    (tmp_path / "code.py").write_text("1\n")
    for words in ("init -q", "add code.py", "-c user.name=a -c user.email=a@b commit -q -m One"):
        subprocess.run(["git", *words.split()], cwd=tmp_path, check=True)
    return tmp_path


def test_versions_name_what_figures_depend_on() -> None:
    assert {"python", "agentgym-envs", "agentgym-eval", "numpy"} <= versions().keys()


def test_the_commit_is_told_and_whether_its_files_have_changed(repository: Path) -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repository, check=True, capture_output=True, text=True)
    (repository / "run").mkdir()
    (repository / "run" / "left.json").write_text("what runs leave changes no code")
    assert git_state(repository / "run") == {"commit": head.stdout.strip(), "dirty": False}
    (repository / "code.py").write_text("2\n")
    assert git_state(repository) == {"commit": head.stdout.strip(), "dirty": True}


def test_outside_of_a_repository_without_commits_and_without_git_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert git_state(tmp_path) is None
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert git_state(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(Path(__file__).parent) is None


def test_code_outside_of_a_repository_leaves_that_of_the_caller(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "__file__", str(tmp_path_factory.mktemp("site-packages") / "provenance.py"))
    monkeypatch.chdir(repository)
    monkeypatch.setattr(sys, "argv", ["evaluate", "--env", "http://me:secret@host/world"])
    told = provenance()
    assert told["git"] == git_state(repository) is not None
    assert told["folder"] == str(repository)
    assert told["command"][:2] == ["evaluate", "--env"]
    assert "secret" not in told["command"][2]
    assert abs(datetime.now(UTC) - datetime.fromisoformat(told["started"])).days == 0
