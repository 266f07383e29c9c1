"""Tests of the command `agentgym`, and of `--version` of all commands."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, version
from pathlib import Path

import pytest
from agentgym_envs.cli.agentgym import KNOWN, installed, main

PACKAGES = Path(__file__).parents[3]
calls: list[Sequence[str]] = []


def fake_command(argv: Sequence[str]) -> int:
    calls.append(argv)
    return 7


def test_known_commands_match_the_declared_ones() -> None:
    projects = {
        file.parent.name: tomllib.loads(file.read_text("utf-8"))["project"] for file in PACKAGES.glob("*/*.toml")
    }
    declared = {
        (name, package)
        for package, project in projects.items()
        for name in project["entry-points"]["agentgym.commands"]
    }
    assert declared == {(name, package) for name, (package, _) in KNOWN.items()}


def test_arguments_and_exit_code_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("view", f"{__name__}:fake_command", "agentgym.commands")
    monkeypatch.setattr("agentgym_envs.cli.agentgym.installed", lambda: {"view": point})
    monkeypatch.setattr(EntryPoint, "load", lambda self: fake_command)
    assert main(["view", "runs", "--help"]) == 7
    assert calls.pop() == ["runs", "--help"]


@pytest.mark.parametrize(
    ("typed", "command"),
    [("eval", "evaluate"), ("index", "searchqa-index"), ("tra", "train"), ("install", "install-browser")],
)
def test_commands_can_be_abbreviated(typed: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def load(self: EntryPoint) -> Callable[[Sequence[str]], int]:
        loaded.append(self.name)
        return fake_command

    monkeypatch.setattr(EntryPoint, "load", load)
    assert main([typed, "x"]) == 7
    assert (loaded, calls.pop()) == ([command], ["x"])


@pytest.mark.parametrize("typed", ["co", "che ck", "ev", "", "valuate", "--eval"])
def test_ambiguous_and_short_abbreviations_are_refused(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([typed]) == 2
    assert f"There is no command '{typed}'" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_lists_installed_commands(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out and description in out for name, (_, description) in KNOWN.items())
    assert "Not installed" not in out


def test_help_all_lists_the_flags_of_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help-all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    starts = {line.split()[0]: number for number, line in enumerate(lines) if line[:3].strip() and line[:2] == "  "}
    assert list(starts) == list(KNOWN)
    flags = {name: lines[start + 1].split() for name, start in starts.items()}
    assert {"--host", "--open"} <= {*flags["view"]}
    assert "--no-open" not in flags["view"]  # --open has it as its other half
    assert "--no-processes" in flags["check"]
    assert flags["doctor"] == ["--only", "--json"]
    assert all(flag.startswith("--") for listed in flags.values() for flag in listed)
    assert lines[-1].endswith("agentgym COMMAND --help lists the settings of a command with their descriptions.")


def test_a_kind_of_recipe_is_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sft"]) == 2
    assert "There is no command 'sft', but there are recipes: uv run agentgym train sft-" in capsys.readouterr().err


def without_the_trainer(package: str) -> object:
    if package == "agentgym-trainer":
        raise PackageNotFoundError(package)
    return distribution(package)


def test_missing_and_unknown_commands_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agentgym_envs.cli.agentgym.distribution", without_the_trainer)
    assert set(installed()) == KNOWN.keys() - {"train"}
    assert main(["train"]) == 2
    error = capsys.readouterr().err
    assert "agentgym: train is part of agentgym-trainer, which isn't installed. Install it: uv " in error
    assert main(["sft-textcraft"]) == 2
    assert "There is no command 'sft-textcraft'." in capsys.readouterr().err
    assert main(["evalute"]) == 2
    assert "There is no command 'evalute'. Did you mean evaluate? There are: evaluate, " in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "Not installed: train. To install: uv " in capsys.readouterr().out


def test_recipes_are_told_from_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sft-textcraft"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("agentgym: sft-textcraft is a recipe, which ")
    assert error.endswith("agentgym train sft-textcraft runs.\n")


def test_version_lists_all_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    packages = ("agentgym-envs", "agentgym-eval", "agentgym-trainer")
    assert capsys.readouterr().out.splitlines() == [f"{package} {version(package)}" for package in packages]


VERSIONS = """
import sys
from agentgym_envs.cli.agentgym import KNOWN, main
for name in [*KNOWN, "--help"]:
    try:
        main([name, "--version"])
    except SystemExit as end:
        assert not end.code
print([name for name in ("torch", "transformers", "fastapi", "matplotlib") if name in sys.modules])
"""


def test_version_of_commands_imports_no_heavy_packages() -> None:
    process = subprocess.run([sys.executable, "-c", VERSIONS], capture_output=True, text=True, check=True)
    lines = process.stdout.splitlines()
    assert lines[: len(KNOWN)] == [f"{package} {version(package)}" for package, _ in KNOWN.values()]
    assert lines[-1] == "[]"
