"""Tests of `--help` of all commands: short, with examples that work, and `--help-all` only where there is more."""

from __future__ import annotations

import re
import shlex

import pytest
from agentgym_envs.cli import agentgym
from agentgym_envs.cli.check import parser as check_parser
from agentgym_envs.cli.completion import WITH_MORE_HELP, flags_of
from agentgym_envs.cli.doctor import parser as doctor_parser
from agentgym_envs.cli.list_command import parser as list_parser
from agentgym_envs.cli.new import parser as new_parser

PARSERS = {"check": check_parser, "doctor": doctor_parser, "list": list_parser, "new": new_parser}
LINES = 50
every_command = pytest.mark.parametrize("name", list(agentgym.installed()))


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def shown(name: str, flag: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        agentgym.main([name, flag])
    assert not end.value.code
    return capsys.readouterr().out


def examples(text: str, name: str) -> list[list[str]]:
    """Return the arguments in each example."""
    section = text.partition("Examples:\n")[2].partition("\n\n")[0]
    return [shlex.split(line.partition(f" {name}")[2]) for line in section.splitlines()]


@every_command
def test_help_is_short_and_has_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(name, "--help", capsys)
    assert text.startswith("usage: ")
    assert len(examples(text, name)) >= 2
    assert name == "train" or len(text.splitlines()) <= LINES  # all recipes are in the help of train
    assert ("--help-all" in text) == (name in WITH_MORE_HELP)


@every_command
def test_flags_of_the_short_help_and_of_examples_exist(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(name, "--help", capsys)
    given = examples(text, name)
    if name in PARSERS:
        for arguments in given:
            PARSERS[name]().parse_args(arguments)
        return
    known = {flag.name for flag in flags_of(agentgym.installed()[name])}
    short = set(re.findall(r"^  (--[a-z][\w.-]*)", text, re.MULTILINE))
    used = {word for arguments in given for word in arguments if word.startswith("--")}
    assert short | used <= known


@every_command
def test_the_short_help_lists_the_values_that_flags_take(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lists = re.findall(
        r"^  (--[\w.-]+) .*: ([\w-]+(?:, [\w-]+)* or [\w-]+)(?: [\[(].*)?$", shown(name, "--help", capsys), re.MULTILINE
    )
    assert name != "train" or "--device" in dict(lists)
    taken = {} if name in PARSERS else {flag.name: set(flag.values) for flag in flags_of(agentgym.installed()[name])}
    for flag, values in lists:
        assert not taken.get(flag) or {*re.split(", | or ", values)} == taken[flag], flag
