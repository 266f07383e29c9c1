"""Tests of `agentgym --completion`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, EntryPoints
from itertools import count
from pathlib import Path

import pytest
from agentgym_envs.cli import agentgym
from agentgym_envs.cli.completion import Completed, flags_of, script
from agentgym_envs.cli.completion_cache import cached_script

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
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
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
    recipes = EntryPoints([EntryPoint("mine", "my_recipes:RECIPE", "agentgym.recipes")])
    with monkeypatch.context() as patched:
        patched.setattr(EntryPoint, "load", _not_called)
        assert agentgym.main(["--completion", "bash"]) == 0
        assert capsys.readouterr().out == out
        patched.setattr(agentgym, "entry_points", lambda group: recipes.select(group=group))  # a plug-in was installed
        with pytest.raises(AssertionError, match="was imported"):
            agentgym.main(["--completion", "bash"])


def _not_called(point: EntryPoint) -> None:
    raise AssertionError(f"{point.name} was imported, although its completion is cached.")


def test_a_script_is_made_again_after_a_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    source = tmp_path / "some_package" / "__init__.py"
    source.parent.mkdir()
    source.write_text("")
    points = [EntryPoint("go", "some_package.cli:main", "agentgym.commands")]
    made = map(str, count())

    def script_of(shell: str = "bash") -> str:
        return cached_script(shell, points, lambda: next(made))

    assert [script_of(), script_of(), script_of("zsh"), script_of()] == ["0", "0", "1", "0"]
    os.utime(source, ns=(0, source.stat().st_mtime_ns + 1))
    assert [script_of(), script_of()] == ["2", "2"]
    (source.parent / "more.py").write_text("")
    assert script_of() == "3"
    points.append(EntryPoint("more", "some_package.more:main", "agentgym.commands"))
    assert script_of() == "4"
    points.append(EntryPoint("mine", "other_package:RECIPE", "agentgym.recipes"))
    assert [script_of(), script_of()] == ["5", "5"]
    cache = tmp_path / "cache" / "agentgym" / "completion"
    assert sorted(path.name.rpartition("-")[2] for path in cache.iterdir()) == ["bash", "zsh"]


def test_without_a_cache_folder_the_script_is_made_each_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    made = map(str, count())
    assert [cached_script("bash", [], lambda: next(made)) for _ in "ab"] == ["0", "1"]
