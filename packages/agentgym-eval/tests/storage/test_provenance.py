"""Tests of the recorded provenance of a run: versions, git commit and command."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from agentgym_eval.storage import provenance as provenance_module
from agentgym_eval.storage.provenance import git_state, provenance, versions


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with one commit of one file."""
    (tmp_path / "code.py").write_text("1\n")
    for arguments in ("init -q", "add code.py", "-c user.name=a -c user.email=a@b commit -q -m One"):
        subprocess.run(["git", *arguments.split()], cwd=tmp_path, check=True)
    return tmp_path


def test_versions_include_packages_that_affect_results() -> None:
    assert {"python", "agentgym-envs", "agentgym-eval", "numpy"} <= versions().keys()


def test_git_state_has_the_commit_and_uncommitted_changes(repository: Path) -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repository, check=True, capture_output=True, text=True)
    (repository / "run").mkdir()
    (repository / "run" / "left.json").write_text("what runs leave changes no code")
    assert git_state(repository / "run") == {"commit": head.stdout.strip(), "dirty": False}
    (repository / "code.py").write_text("2\n")
    assert git_state(repository) == {"commit": head.stdout.strip(), "dirty": True}


def test_git_state_is_none_without_repository_commits_or_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_state(tmp_path) is None
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert git_state(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(Path(__file__).parent) is None


def test_installed_package_records_the_repository_of_the_caller(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance_module, "__file__", str(tmp_path_factory.mktemp("site-packages") / "provenance.py"))
    monkeypatch.chdir(repository)
    monkeypatch.setattr(sys, "argv", ["evaluate", "--env", "http://me:secret@host/world"])
    record = provenance()
    assert record["git"] == git_state(repository) is not None
    assert record["folder"] == str(repository)
    assert record["command"][:2] == ["evaluate", "--env"]
    assert "secret" not in record["command"][2]
    assert abs(datetime.now(UTC) - datetime.fromisoformat(record["started"])).days == 0
