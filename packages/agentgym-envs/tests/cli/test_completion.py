"""Tests of `agentgym --completion`."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.cli import agentgym, completion_cache
from agentgym_envs.cli.completion import Completed, Flag, flags_of, script
from agentgym_envs.cli.completion_cache import cached_script
from programs import require_program

COMMANDS = {
    "train": Completed(
        "train an agent",
        [
            Flag("--optimizer.lr"),
            Flag("--out"),
            Flag("--algorithm", ("grpo", "reinforce++", "reinforce++-baseline")),
            Flag("--world.agent", ("react", "tags", "+plan", "+window:")),
        ],
        ["quickstart", "textcraft-grpo"],
    ),
    "evaluate": Completed(
        "evaluate",
        [
            Flag("--env", ("textcraft", "babyai"), many=True),
            Flag("--policy", ("oracle", "oracle:", "openai:", "hf:", "random"), many=True),
            Flag("--split", ("train", "test")),
        ],
    ),
    "view": Completed("view the user's runs", [Flag("--port")]),
}
LINES = {
    "agentgym tr": "train",
    "agentgym --ver": "--version",
    "agentgym train q": "quickstart",
    "agentgym train quickstart --o": "--optimizer.lr --out",
    "agentgym view --": "--port",
    "agentgym view r": "",
    "agentgym train ": "quickstart textcraft-grpo",
    "agentgym train quickstart --algorithm ": "grpo reinforce++ reinforce++-baseline",
    "agentgym train quickstart --algorithm reinforce++-": "reinforce++-baseline",
    "agentgym train --algorithm=g": "grpo",
    "agentgym train --algorithm=": "grpo reinforce++ reinforce++-baseline",
    "agentgym train --algorithm grpo ": "",
    "agentgym train --out ": "",
    "agentgym evaluate --env tex": "textcraft",
    "agentgym evaluate --env textcraft b": "babyai",
    "agentgym evaluate --env textcraft --policy o": "oracle oracle: openai:",
    "agentgym evaluate --policy random h": "hf:",
    "agentgym evaluate --policy hf:": "",
    "agentgym evaluate --policy hf:r": "",
    "agentgym evaluate --policy hf:runs --split ": "train test",
    "agentgym evaluate --split test t": "",
    "agentgym evaluate --split train --": "--env --policy --split",
    "agentgym evaluate --env textcraft --": "--env --policy --split",
    "agentgym train --world.agent ": "react tags",
    "agentgym train --world.agent react+": "react+plan react+window:",
    "agentgym train --world.agent react+plan+w": "react+plan+window:",
}
"""Lines whose last word is unfinished, with the words that complete it; files complete it where there are none."""
TYPED = {
    "agentgym train quick": "agentgym train quickstart ",
    "agentgym evaluate --env=ba": "agentgym evaluate --env=babyai ",
    "agentgym evaluate --policy hf": "agentgym evaluate --policy hf:",
    "agentgym evaluate --policy hf:ru": "agentgym evaluate --policy hf:runs/",
    "agentgym train --world.agent react+w": "agentgym train --world.agent react+window:",
    "agentgym view ru": "agentgym view runs/",
}
"""Lines before and after the tab key, in a folder with the folder `runs`."""
HELP = """usage: shown [-h] [OPTIONS]
--elsewhere is a flag of another command.

╭─ options ─────────────────────────────────────────────╮
│ -h, --help    show this help                          │
│ --out PATH    the folder, which is created, see       │
│               --folder. Existing ones are kept.       │
│ --open, --no-open                                     │
│ --kind {None}|{big,small}                             │
│ --track [{trackio,wandb} [{trackio,wandb} ...]]       │
│ --env [STR [STR ...]]                                 │
╰───────────────────────────────────────────────────────╯
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
        Flag("--help"),
        Flag("--out"),
        Flag("--open"),
        Flag("--no-open"),
        Flag("--kind", ("big", "small")),
        Flag("--track", ("trackio", "wandb"), many=True),
        Flag("--env", many=True),
    ]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("line", "completed"), LINES.items())
def test_bash_completes_commands_flags_and_values(line: str, completed: str) -> None:
    assert bash_completes(script("bash", COMMANDS), line) == completed


def bash_completes(source: str, line: str) -> str:
    """Return the completions of a line whose last word is unfinished, which bash splits also at colons and `=`."""
    words = re.findall(r"[^\s:=]+|[:=]", line) + [""] * line.endswith(" ")
    given = " ".join(map(shlex.quote, words))
    code = f'{source}\nCOMP_WORDS=({given}); COMP_CWORD={len(words) - 1}; _agentgym; echo "${{COMPREPLY[*]}}"'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.long
@pytest.mark.parametrize(("typed", "line"), TYPED.items())
def test_the_tab_key_completes_in_a_terminal(typed: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "agentgym.bash").write_text(script("bash", COMMANDS))
    environment = {"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "> ", "HISTFILE": ""}
    with in_terminal(["bash", "--norc", "--noprofile", "-i"], tmp_path, environment) as terminal:
        read_until(terminal, "> ")
        os.write(terminal, b"source ./agentgym.bash; echo rea''dy\n")
        read_until(terminal, "ready\r\n> ")
        os.write(terminal, f"{typed}\t|".encode())
        assert read_until(terminal, "|").endswith(f"{line}|")


@contextmanager
def in_terminal(command: Sequence[str], folder: Path, environment: dict[str, str]) -> Iterator[int]:
    """Run a shell in a terminal, and yield the descriptor to write keys to and to read from."""
    ours, terminal = pty.openpty()
    arguments: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    arguments |= {"cwd": folder, "env": environment, "start_new_session": True}
    with subprocess.Popen(command, **arguments) as shell:
        try:
            yield ours
        finally:
            shell.kill()
            os.close(terminal)
            os.close(ours)


def read_until(terminal: int, end: str) -> str:
    """Return what a terminal shows, up to `end` or until it shows nothing more for half a minute."""
    text = ""
    while not text.endswith(end) and select.select([terminal], [], [], 30)[0]:
        text += os.read(terminal, 1).decode(errors="replace")
    return text


@pytest.mark.long
@pytest.mark.parametrize("sourced", [True, False])
def test_zsh_completes_like_bash(sourced: bool, tmp_path: Path) -> None:
    found = zsh_completes(tmp_path, script("zsh", COMMANDS), LINES, sourced=sourced)
    assert {line: words for line, (_, words) in found.items()} == {line: in_order(LINES[line]) for line in LINES}
    (tmp_path / "here/runs").mkdir()
    typed = zsh_completes(tmp_path, script("zsh", COMMANDS), TYPED, sourced=sourced)
    assert {line: completed for line, (completed, _) in typed.items()} == TYPED


@pytest.mark.long
def test_fish_completes_like_bash(tmp_path: Path) -> None:
    source = script("fish", COMMANDS)
    assert fish_completes(tmp_path, source, LINES) == {line: in_order(LINES[line]) for line in LINES}
    (tmp_path / "runs").mkdir()
    assert fish_completes(tmp_path, source, ["agentgym view ru", "agentgym evaluate --policy hf:ru"]) == {
        "agentgym view ru": "runs/",
        "agentgym evaluate --policy hf:ru": "hf:runs/",
    }
    assert complete_in_fish(tmp_path, source, "agentgym vi") == "view\tview the user's runs"


@pytest.mark.long
def test_scripts_of_the_installed_commands_complete_in_zsh_and_fish(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lines = {
        "agentgym train --algorithm dr": "dr-grpo",
        "agentgym train --engine.kind v": "vllm vllm-server",
        "agentgym collect --agent react+re": "react+reflect: react+retry",
        "agentgym compare --ag": "--against",
        "agentgym serve --po": "--port",
        "agentgym list textcraft-g": "textcraft-grpo",
        "agentgym new ": "world",
    }
    assert agentgym.main(["--completion", "fish"]) == 0
    assert fish_completes(tmp_path, capsys.readouterr().out, lines) == lines
    assert agentgym.main(["--completion", "zsh"]) == 0
    found = zsh_completes(tmp_path, capsys.readouterr().out, lines)
    assert {line: words for line, (_, words) in found.items()} == lines


def in_order(words: str) -> str:
    return " ".join(sorted({*words.split()}))


def zsh_completes(
    folder: Path, source: str, lines: Iterable[str], *, sourced: bool = True
) -> dict[str, tuple[str, str]]:
    """Return each line after the tab key in zsh, in an empty folder `here`, and the words that zsh offered. The script
    is sourced, or found by zsh in a folder of `fpath`.
    """
    zsh = require_program("zsh")
    (folder / "here").mkdir(exist_ok=True)
    (folder / "_agentgym").write_text(source)
    (folder / "set_up").write_text(f"""
        fpath=({"" if sourced else ".."} $fpath)
        autoload -U compinit
        compinit -u -D
        {". ../_agentgym" if sourced else ""}
        compadd() {{
            local -a each
            builtin compadd -O each "$@"
            offered+=("${{IPREFIX#--*=}}"${{^each}})
            builtin compadd "$@"
        }}
        press_tab() {{
            offered=()
            zle expand-or-complete
            print -r -- "<$BUFFER|$offered>"
            BUFFER=""
        }}
        zle -N press_tab
        bindkey '^I' press_tab
        print rea''dy""")
    environment = {"PATH": os.environ["PATH"], "TERM": "dumb", "HOME": str(folder)}
    found = dict[str, tuple[str, str]]()
    with in_terminal([zsh, "-f", "-i"], folder / "here", environment) as terminal:
        os.write(terminal, b". ../set_up\n")
        read_until(terminal, "ready\r\n")
        for line in lines:
            os.write(terminal, f"{line}\t".encode())
            completed, _, words = read_until(terminal, ">\r\n").rpartition("<")[2].removesuffix(">\r\n").partition("|")
            found[line] = completed, in_order(words)
    return found


def fish_completes(folder: Path, source: str, lines: Iterable[str]) -> dict[str, str]:
    """Return the words that fish offers for each line."""
    found = dict[str, str]()
    for line in lines:
        words = [each.partition("\t")[0] for each in complete_in_fish(folder, source, line).splitlines()]
        found[line] = in_order(" ".join(re.sub(r"^--.*=", "", word) for word in words))
    return found


def complete_in_fish(folder: Path, source: str, line: str) -> str:
    fish = require_program("fish")
    code = f"{source}\ncomplete -C {shlex.quote(line)}"
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder.parent)}
    arguments: dict[str, Any] = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([fish, "--no-config", "-c", code], check=True, **arguments)
    assert done.stderr == ""
    return done.stdout.rstrip("\n")


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
    assert bash_completes(out, "agentgym train --algorithm dr") == "dr-grpo"
    assert bash_completes(out, "agentgym train --horizon ") == "fixed step adaptive backward"
    assert bash_completes(out, "agentgym train --engine.kind v") == "vllm vllm-server"
    for shell in ([], ["powershell"]):
        assert agentgym.main(["--completion", *shell]) == 2
        assert "choose one of bash, zsh, fish" in capsys.readouterr().err
    plugin = EntryPoint("mine", "my_recipes:RECIPE", "agentgym.recipes")
    with monkeypatch.context() as patched:
        patched.setattr(EntryPoint, "load", _not_called)
        assert agentgym.main(["--completion", "bash"]) == 0
        assert capsys.readouterr().out == out
        patched.setattr(completion_cache, "plugins", lambda: [plugin])  # it was installed
        with pytest.raises(AssertionError, match="was imported"):
            agentgym.main(["--completion", "bash"])


@pytest.mark.long
def test_names_of_plugins_are_completed(tmp_path: Path) -> None:
    info = tmp_path / "plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    groups = ("environments", "policies", "agents", "recipes", "algorithms", "horizons", "harnesses")
    points = [
        f"[agentgym.{group}]\nmy-{group} = not_importable:THING\n$(date) = not_importable:THING\n" for group in groups
    ]
    (info / "entry_points.txt").write_text("\n".join(points))
    code = "import sys; from agentgym_envs.cli.agentgym import main; sys.exit(main(['--completion', 'bash']))"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert "$(date)" not in done.stdout
    for line, completed in {
        "evaluate --env my": "my-environments",
        "check my": "my-environments",
        "evaluate --env ": "textcraft babyai sciworld searchqa webarena my-environments all",
        "evaluate --policy my": "my-policies:",
        "evaluate --policy v": "vllm:",
        "evaluate --protocol a": "agentgym-rl",
        "collect --agent my": "my-agents",
        "collect --agent react+r": "react+reflect: react+retry",
        "collect --keep s": "success",
        "evaluate --horizon ": "",
        "train my": "my-recipes",
        "train quickstart --algorithm my": "my-algorithms",
        "train quickstart --horizon my": "my-horizons",
        "train quickstart --harness my": "my-harnesses",
        "train quickstart --world.env my": "my-environments",
        "list alg": "algorithms",
        "list textcraft-g": "textcraft-grpo",
        "doctor --only java chr": "chromium",
        "new ": "world",
        "convert --to t": "trl",
    }.items():
        assert bash_completes(done.stdout, f"agentgym {line}") == completed, line


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
