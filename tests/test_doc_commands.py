"""Tests that run the commands of the documentation, with each document as a session in an empty folder.

The tables in docs/commands.md define how commands are made smaller, and which ones aren't run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from agentgym_envs.cli import main as envs_cli
from agentgym_eval.cli import convert as data_cli
from agentgym_eval.cli import main as eval_cli
from dev_packages import require_packages
from documents import COMMANDS_PAGE, DOCUMENTS, blocks, command_lines, inline_commands, name_of, register, write_files
from fake_endpoint import Answer, completion_answer, serve_endpoint

BIN = Path(sys.executable).parent
IN_PROCESS = {
    "evaluate": eval_cli,
    "collect": eval_cli,
    "compare": eval_cli,
    "convert": data_cli,
    "searchqa-index": envs_cli,
}
SHORT_NAMES = {*IN_PROCESS, "serve", "train", "view"}
"""Commands that have a name of their own in this repository; users of the packages put `agentgym` before it."""
ADDRESS = re.compile(r"(http://)?(127\.0\.0\.1|localhost):8000")


def table(heading: str) -> list[tuple[str, ...]]:
    """Return the rows of the first table after `heading`, without backticks."""
    _, _, after = COMMANDS_PAGE.read_text(encoding="utf-8").partition(heading)
    rows = re.search(r"^\|(?:.+\n)+", after, re.MULTILINE)
    assert rows, heading
    cells = [tuple(cell.strip().strip("`") for cell in row.strip("|").split("|")) for row in rows[0].splitlines()]
    return cells[2:]


SMALL_FLAGS = {command: flags.split() for command, flags, _ in table("commands are made small")}
EXCLUDED = dict(table("## What no test runs"))


DOCUMENTS_TO_RUN = [
    document for document in DOCUMENTS if not name_of(document).startswith(("docs/results/", "docs/ten-commands"))
]
"""Documents whose commands are run: in the others, commands only document a measurement, or a session that
test_wheels.py plays again."""


def is_excluded(line: str) -> bool:
    return any(part in line for part in EXCLUDED)


def sessions() -> dict[Path, list[str]]:
    """Return the commands to run of each document. Inline commands run once, and only if no block has them."""
    commands = {
        document: [line for block in blocks(document) for line in block.commands] for document in DOCUMENTS_TO_RUN
    }
    listed = {line.partition("  #")[0].strip() for lines in commands.values() for line in lines}
    for document in DOCUMENTS_TO_RUN:
        inline = [line for line in dict.fromkeys(inline_commands(document)) if line not in listed]
        listed |= set(inline)
        commands[document] += inline
    return {document: run for document, lines in commands.items() if (run := [x for x in lines if not is_excluded(x)])}


def is_quick(lines: list[str]) -> bool:
    words = {word for line in lines for word in line.split()}
    return not words & {"train", "serve", "view", "curl", "searchqa-index", "sciworld", "all", "compare"}


SESSIONS = sessions()


# Files that documents assume to exist.


def training_run(path: Path) -> None:
    run_train(["--out", str(path)])


def collected_episodes(path: Path) -> None:
    assert eval_cli.collect(["--env", "textcraft", "--policy", "oracle", "--tasks", "2", "--out", str(path)]) == 0


def evaluation_run(policy: str) -> Callable[[Path], None]:
    def create(path: Path) -> None:
        assert eval_cli.evaluate([*f"--env textcraft --policy {policy} --tasks 2 --out".split(), str(path)]) == 0

    return create


def conversations(path: Path) -> None:
    turns = [("human", "You act in a house."), ("gpt", "OK"), ("human", "Your goal: go"), ("gpt", "Action:\nturn left")]
    messages = [{"from": role, "loss": role == "gpt", "value": text} for role, text in turns]
    path.write_text(json.dumps([{"item_id": "babyai_2", "conversations": messages}]))


def text_file(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(text, encoding="utf-8") and None


def secret_file(path: Path) -> None:
    path.touch(mode=0o600)
    path.write_text("0123456789abcdef")


CORPUS = "".join(f'{{"id": "{n}", "contents": "\\"Title {n}\\"\\nText {n}"}}\n' for n in range(5))
WORLD = """import agentgym_envs, gymnasium
gymnasium.register("lamps/Lamps-v0", "agentgym_envs.worlds.textcraft.env:TextCraft", max_episode_steps=9)
"""
GIVEN_FILES: dict[str, Callable[[Path], None]] = {
    "runs/mine": training_run,
    "runs/before": evaluation_run("random"),
    "runs/a": evaluation_run("oracle"),
    "runs/b": evaluation_run("random"),
    "runs/grpo-0": evaluation_run("oracle"),
    "runs/grpo-1": evaluation_run("oracle"),
    "runs/opo-0": evaluation_run("random"),
    "runs/opo-1": evaluation_run("random"),
    "actions.txt": text_file("inventory\n"),
    "babyai_test.json": text_file('[{"item_id": "babyai_2"}, {"item_id": "babyai_15"}]'),
    "babyai_train.json": conversations,
    "demonstrations.jsonl": collected_episodes,
    "CORPUS.jsonl": text_file(CORPUS),
    "corpus.jsonl": text_file(CORPUS),
    "my_worlds.py": text_file(WORLD),
    "queries.jsonl": text_file('{"question": "What is text 3?", "answer": "Text 3"}\n'),
    "token": secret_file,
}


# Running commands.


TRAINING_RUNS: dict[tuple[str, ...], Path] = {}
"""Finished training runs by their flags, shared between documents."""


def last_training_run() -> Path:
    return max(Path("runs").glob("*/summary.json"), key=lambda path: path.stat().st_mtime).parent


def run_train(arguments: list[str]) -> None:
    """Run `train` with a small configuration, or plan a run of full size. A run that differs from an earlier one only
    in its folder is copied.
    """
    from agentgym_trainer import cli

    i = arguments.index("--out") if "--out" in arguments else len(arguments)
    out = Path(*arguments[i + 1 : i + 2])
    flags = (*arguments[:i], *arguments[i + 2 :])
    if "--plan" in arguments:
        assert cli._run(arguments) == 0
    elif flags not in TRAINING_RUNS:
        assert cli._run([*arguments, *SMALL_FLAGS["train"]]) == 0
        TRAINING_RUNS[flags] = (out if i < len(arguments) else last_training_run()).resolve()
    elif i < len(arguments):
        shutil.copytree(TRAINING_RUNS[flags], out, symlinks=True)  # the best checkpoint is a link


def useless_reply(request: dict[str, Any]) -> Answer:
    return completion_answer("I know nothing", finish="length")  # the episode ends after one reply


@dataclass
class Session:
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    stack: ExitStack
    assigned: list[str] = field(default_factory=list)
    server: subprocess.Popen[str] | None = None
    address: str = "http://127.0.0.1:9"
    id: str = "7c0e..."
    """Id of the session opened last, which replaces the placeholder in documents."""

    def run(self, line: str) -> None:
        line = ADDRESS.sub(lambda match: self.address if match[1] else self.address.removeprefix("http://"), line)
        words = shlex.split(line, comments=True)
        words = words[2:] if words[:2] == ["uv", "run"] else words
        words = words[1:] if words[0] == "agentgym" and {*words[1:2]} & SHORT_NAMES else words
        command, arguments = words[0], words[1:]
        if {"--help", "--help-all"} & {*arguments}:
            subprocess.run([BIN / command, *arguments], check=True, capture_output=True)
        elif command == "train":
            run_train(arguments) if "--resume" not in arguments else run_resume(arguments)
        elif command in IN_PROCESS:
            function: Callable[[list[str]], int] = getattr(IN_PROCESS[command], command.replace("-", "_"))
            assert function(self.small(command, arguments)) == 0, line
        elif command in ("serve", "view"):
            self.start(command, arguments)
        else:
            self.shell(line)

    def small(self, command: str, arguments: list[str]) -> list[str]:
        if "--base-url" in arguments or any(word.startswith("openai:") for word in arguments):
            arguments = [*arguments, "--base-url", self.stack.enter_context(serve_endpoint(useless_reply)).base_url]
            self.monkeypatch.setenv("OPENAI_API_KEY", "none")
        named = {"--task", "--items"} & set(arguments)
        return arguments if named else [*arguments, *SMALL_FLAGS.get(command, [])]

    def start(self, command: str, arguments: list[str]) -> None:
        """Start a server, which runs until the next one."""
        self.stop()
        if command == "view" and not Path(arguments[0]).exists():
            self.run(f"evaluate --env textcraft --policy oracle --out {arguments[0]}/oracle")
        export = "--export" in arguments
        call = [str(BIN / command), *arguments, *(SMALL_FLAGS[command][:1] if export else SMALL_FLAGS[command])]
        if export:
            subprocess.run(call, cwd=self.folder, check=True, capture_output=True)
            return
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.server = subprocess.Popen(call, cwd=self.folder, **pipes)
        assert self.server.stdout
        lines: list[str] = []
        for text in self.server.stdout:
            lines.append(text)
            if match := re.search(r"http://127\.0\.0\.1:\d+", text):
                break
        else:
            self.server.wait(60)
            self.server = None
            raise AssertionError(f"{command} ended: {''.join(lines)}")
        self.address = match[0]
        page = {"serve": "/healthz", "view": "/"}[command]
        assert httpx.get(self.address + page, trust_env=False, follow_redirects=True).status_code == 200

    def stop(self) -> None:
        if self.server is None:
            return
        self.server.send_signal(signal.SIGINT)
        rest, _ = self.server.communicate(timeout=60)
        assert self.server.returncode == 0, rest
        self.server = None

    def shell(self, line: str) -> None:
        """Run any other line in a shell, with the variables assigned before it."""
        line = line.replace("7c0e...", self.id)
        if re.match(r"(export )?\w+=\S*( \w+=\S*)*$", line):
            self.assigned.append(line)
            return
        script = "\n".join(["set -euo pipefail", *self.assigned, line.replace("curl ", "curl -sS --fail-with-body ")])
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, capture_output=True, text=True, env={**os.environ, "PATH": path}
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        if match := re.search(r'"id":\s*"(\w+)"', done.stdout):
            self.id = match[1]


def run_resume(arguments: list[str]) -> None:
    from agentgym_trainer import cli

    assert cli._run(arguments) == 0


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # commands add the working folder to it
    with ExitStack() as stack:
        session = Session(tmp_path, monkeypatch, stack)
        stack.callback(session.stop)
        yield session


def run_document(document: Path, session: Session) -> None:
    write_files(document, session.folder)
    register(session.folder)
    session.monkeypatch.syspath_prepend(str(session.folder))
    lines = SESSIONS[document]
    for name, create in GIVEN_FILES.items():
        mention = re.compile(rf"(?<![\w/.-]){re.escape(name.removesuffix('.py'))}\b")
        is_output = any(f"--out {name} " in f"{line} " for line in lines)
        if not is_output and any(mention.search(line) for line in lines):
            (session.folder / name).parent.mkdir(parents=True, exist_ok=True)
            create(session.folder / name)
    done: set[str] = set()
    for line in lines:
        if not ("--out" in line and line in done):  # a document may repeat a command with the same folder
            session.run(line)
        done.add(line)


def documents(quick: bool) -> list[Path]:
    return [document for document, lines in SESSIONS.items() if is_quick(lines) is quick]


@pytest.mark.parametrize("document", documents(True), ids=name_of)
def test_commands_of_the_document_work(document: Path, session: Session) -> None:
    run_document(document, session)


@pytest.mark.long
@pytest.mark.parametrize("document", documents(False), ids=name_of)
def test_slow_commands_of_the_document_work(document: Path, session: Session) -> None:
    if shutil.which("curl") is None and any("curl" in line for line in SESSIONS[document]):
        pytest.skip("There is no curl: install it with the system's package manager.")
    if any("searchqa-index" in line and "bm25" not in line for line in SESSIONS[document]):
        require_packages("pyserini")
    run_document(document, session)


# Excluded commands, in docs/commands.md.


def test_every_excluded_command_is_in_a_document() -> None:
    lines = [line for document in DOCUMENTS for line in command_lines(document)]
    assert [part for part in EXCLUDED if not any(part in line for line in lines)] == []


def test_every_command_is_run_or_excluded_with_a_reason() -> None:
    run = {line for lines in SESSIONS.values() for line in lines}
    assert run
    assert all(len(reason) > 5 for reason in EXCLUDED.values())
    for document in DOCUMENTS_TO_RUN:
        for block in blocks(document):
            assert set(block.commands) <= run | {line for line in block.commands if is_excluded(line)}
            # Only shell blocks may have commands: others aren't run.
            if block.language not in ("sh", "console"):
                assert not re.search(r"^(\$ )?uv run (?!scripts)", block.body, re.MULTILINE), name_of(document)
