"""Tests that commands print what their users can type: `uv run train` in a checkout, `agentgym train` elsewhere."""

from __future__ import annotations

import re

import pytest
from agentgym_envs.cli.agentgym import KNOWN, main
from agentgym_envs.util.installation import Installation

SHORT_NAMES = KNOWN.keys() - {"list", "doctor", "check", "new"}
CHECKOUT, WHEELS = Installation(checkout=True, by_uv=True), Installation(checkout=False, by_uv=False)


def help_of(name: str, installation: Installation, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentgym_envs.util.installation.here", lambda: installation)
        try:
            assert main([name, "--help"] if name else ["--help"]) == 0
        except SystemExit as end:
            assert not end.code
    return capsys.readouterr().out


@pytest.mark.parametrize("name", KNOWN)
def test_help_names_the_command_of_the_installation(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    typed = f"uv run {name}" if name in SHORT_NAMES else f"uv run agentgym {name}"
    assert help_of(name, CHECKOUT, capsys).startswith(f"usage: {typed} ")
    shown = help_of(name, WHEELS, capsys)
    assert shown.startswith(f"usage: agentgym {name} ")
    assert "uv run" not in shown


@pytest.mark.parametrize("name", ["train", "evaluate", "collect", "compare", "view", "convert"])
@pytest.mark.parametrize(("installation", "prefix"), [(CHECKOUT, "uv run"), (WHEELS, "agentgym")])
def test_examples_can_be_typed(
    name: str, installation: Installation, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, examples = help_of(name, installation, capsys).partition("Examples:\n")
    lines = re.match(r"(?:  \S.*\n)+", examples)
    assert lines
    assert all(line.startswith(f"  {prefix} {name}") for line in lines[0].splitlines())


def test_the_list_of_commands_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert help_of("", CHECKOUT, capsys).startswith("usage: uv run agentgym COMMAND ")
    assert help_of("", WHEELS, capsys).startswith("usage: agentgym COMMAND ")
