"""Tests of the command `agentgym new world`: what it writes keeps the contract and passes its own tests."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from agentgym_envs.cli.agentgym import main
from agentgym_envs.core import registration
from agentgym_envs.core.registration import full_id

ENV = "secret_number:secret_number/SecretNumber-v0"


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_the_written_package_keeps_the_contract_and_passes_its_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "world", "secret_number"]) == 0
    out = capsys.readouterr().out
    assert f"Wrote secret_number with the environment {ENV}." in out
    assert f"check {ENV}" in out
    folder = tmp_path / "secret_number"
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "secret-number"
    assert project["entry-points"]["agentgym.environments"] == {"secret_number": "secret_number:ENV_ID"}
    assert "passed" in run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    code = "import sys; from agentgym_envs.cli.agentgym import main; sys.exit(main())"
    checked = run(tmp_path, "-c", code, "check", ENV, "--folder", "secret_number", "--tasks", "1")
    assert "All 9 rules are kept." in checked
    assert "Success by difficulty" in checked
    assert "  warning" not in checked


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Lamps", "use lower-case words"),
        ("my-lamps", "use lower-case words"),
        ("class", "use lower-case words"),
        ("../lamps", "use lower-case words"),
        ("none", "The class None would hide what its own code uses"),
        ("feedback", "The class Feedback would hide what its own code uses"),
        ("json", "There is a Python module json already"),
        ("numpy", "There is a Python module numpy already"),
        ("textcraft", "There is an environment textcraft already"),
    ],
)
def test_bad_names_are_refused(
    name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "world", name]) == 2
    assert reason in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_existing_folders_are_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beacons").mkdir()
    assert main(["new", "world", "beacons"]) == 2
    assert "beacons exists; choose another name, or another folder with --out." in capsys.readouterr().err
    assert list((tmp_path / "beacons").iterdir()) == []
    assert main(["new", "world", "beacons", "--out", "elsewhere/beacons"]) == 0
    assert (tmp_path / "elsewhere/beacons/beacons/env.py").is_file()


def test_environments_of_installed_packages_have_short_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "world", "short_named"]) == 0
    monkeypatch.syspath_prepend(tmp_path / "short_named")
    point = EntryPoint("short_named", "short_named:ENV_ID", registration.GROUP)

    def points(group: str, name: str) -> EntryPoints:
        return EntryPoints([point]).select(group=group, name=name)

    monkeypatch.setattr(registration, "entry_points", points)
    assert full_id("short_named") == "short_named:short_named/ShortNamed-v0"
    assert full_id("another") == "another"
    assert main(["list", "short_named"]) == 0
    assert "short_named (environments): Find a hidden number." in capsys.readouterr().out
