"""Tests of `agentgym --completion`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from agentgym_envs.cli import agentgym
from agentgym_envs.cli.completion import Completed, flags_of, script

COMMANDS = {
    "train": Completed("train an agent", ["--optimizer.lr", "--out"], ["quickstart", "textcraft-grpo"]),
    "view": Completed("view the user's runs", ["--port"]),
}
HELP = """usage: shown [-h] [OPTIONS]
See --elsewhere.

╭─ options ─────────────────────╮
│ -h, --help    show this help  │
│ --out PATH    the --folder    │
│ --open, --no-open             │
╰───────────────────────────────╯
"""


def shown(argv: Sequence[str]) -> int:
    assert argv == ["--help"]
    sys.stdout.write(HELP)
    raise SystemExit(0)


def test_flags_are_those_that_the_help_explains(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(EntryPoint, "load", lambda self: shown)
    assert flags_of(EntryPoint("shown", "module:shown", "agentgym.commands")) == [
        "--help",
        "--out",
        "--open",
        "--no-open",
    ]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("agentgym tr", "train"),
        ("agentgym --ver", "--version"),
        ("agentgym train q", "quickstart"),
        ("agentgym train quickstart --o", "--optimizer.lr --out"),
        ("agentgym view --", "--port"),
        ("agentgym view r", ""),
    ],
)
def test_bash_completes_commands_flags_and_recipes(line: str, completed: str, tmp_path: Path) -> None:
    (tmp_path / "agentgym.bash").write_text(script("bash", COMMANDS))
    words = line.split()
    code = (
        f'source agentgym.bash; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _agentgym; echo "${{COMPREPLY[*]}}"'
    )
    done = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == completed
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_of_other_shells_are_valid(shell: str, tmp_path: Path) -> None:
    written = script(shell, COMMANDS)
    assert all(word in written for word in ("train", "optimizer.lr", "textcraft-grpo", "port"))
    if shell == "fish":
        assert """-d 'view the user'"'"'s runs'""" in written
        assert "complete -c agentgym -n '__fish_seen_subcommand_from view' -l port" in written.splitlines()
    if program := shutil.which(shell):
        (tmp_path / "script").write_text(written)
        subprocess.run([program, "-n", "script"], cwd=tmp_path, check=True)


def test_the_script_has_the_installed_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = agentgym.installed()
    few = {name: found[name] for name in ("serve", "compare", "train")}
    monkeypatch.setattr(agentgym, "installed", lambda: few)
    assert agentgym.main(["--completion", "bash"]) == 0
    out = capsys.readouterr().out
    assert "quickstart" in out
    assert all(flag in out for flag in ("--port", "--against", "--optimizer.lr", "--sweep"))
    for shell in ([], ["powershell"]):
        assert agentgym.main(["--completion", *shell]) == 2
        assert "choose one of bash, zsh, fish" in capsys.readouterr().err
