"""Tests of `agentgym --completion`."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.cli import agentgym, completion_cache
from agentgym_envs.cli.completion import Completed, Flag, flags_of, script
from agentgym_envs.cli.completion_cache import cached_script

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


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("agentgym tr", "train"),
        ("agentgym --ver", "--version"),
        ("agentgym train q", "quickstart"),
        ("agentgym train quickstart --o", "--optimizer.lr --out"),
        ("agentgym view --", "--port"),
        ("agentgym view r", ""),
        ("agentgym train ", "quickstart textcraft-grpo"),
        ("agentgym train quickstart --algorithm ", "grpo reinforce++ reinforce++-baseline"),
        ("agentgym train quickstart --algorithm reinforce++-", "reinforce++-baseline"),
        ("agentgym train --algorithm=g", "grpo"),
        ("agentgym train --algorithm=", "grpo reinforce++ reinforce++-baseline"),
        ("agentgym train --algorithm grpo ", ""),
        ("agentgym train --out ", ""),
        ("agentgym evaluate --env tex", "textcraft"),
        ("agentgym evaluate --env textcraft b", "babyai"),
        ("agentgym evaluate --env textcraft --policy o", "oracle oracle: openai:"),
        ("agentgym evaluate --policy random h", "hf:"),
        ("agentgym evaluate --policy hf:", ""),
        ("agentgym evaluate --policy hf:r", ""),
        ("agentgym evaluate --policy hf:runs --split ", "train test"),
        ("agentgym evaluate --split test t", ""),
        ("agentgym evaluate --env textcraft --", "--env --policy --split"),
        ("agentgym train --world.agent ", "react tags"),
        ("agentgym train --world.agent react+", "react+plan react+window:"),
        ("agentgym train --world.agent react+plan+w", "react+plan+window:"),
    ],
)
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
@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("agentgym train quick", "agentgym train quickstart "),
        ("agentgym evaluate --env=ba", "agentgym evaluate --env=babyai "),
        ("agentgym evaluate --policy hf", "agentgym evaluate --policy hf:"),
        ("agentgym evaluate --policy hf:ru", "agentgym evaluate --policy hf:runs/"),
        ("agentgym train --world.agent react+w", "agentgym train --world.agent react+window:"),
        ("agentgym view ru", "agentgym view runs/"),
    ],
)
def test_the_tab_key_completes_in_a_terminal(typed: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "agentgym.bash").write_text(script("bash", COMMANDS))
    ours, terminal = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "> ", "HISTFILE": ""}
    arguments: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    arguments |= {"cwd": tmp_path, "env": environment, "start_new_session": True}
    with subprocess.Popen(["bash", "--norc", "--noprofile", "-i"], **arguments) as bash:
        try:
            read_until(ours, "> ")
            os.write(ours, b"source ./agentgym.bash; echo rea''dy\n")
            read_until(ours, "ready\r\n> ")
            os.write(ours, f"{typed}\t|".encode())
            assert read_until(ours, "|").endswith(f"{line}|")
        finally:
            bash.kill()
            os.close(terminal)
            os.close(ours)


def read_until(terminal: int, end: str) -> str:
    """Return what a terminal shows, up to `end` or until it shows nothing more for half a minute."""
    text = ""
    while not text.endswith(end) and select.select([terminal], [], [], 30)[0]:
        text += os.read(terminal, 1).decode(errors="replace")
    return text


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_of_other_shells_are_valid(shell: str, tmp_path: Path) -> None:
    written = script(shell, COMMANDS)
    assert all(word in written for word in ("train", "optimizer.lr", "textcraft-grpo", "port"))
    if shell == "fish":
        assert """-d 'view the user'"'"'s runs'""" in written
        lines = written.splitlines()
        assert "complete -c agentgym -n '__fish_seen_subcommand_from view' -l port" in lines
        after = "complete -c agentgym -n '__fish_seen_subcommand_from train'"
        assert f"{after} -l algorithm -r -a 'grpo reinforce++ reinforce++-baseline'" in lines
        assert f"{after} -l world.agent -r -a 'react tags'" in lines
    else:
        assert "evaluate:*:--env) values=(textcraft babyai);;" in written
        assert "train:3:) values=(quickstart textcraft-grpo);;" in written
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
