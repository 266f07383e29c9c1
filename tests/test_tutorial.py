"""Tests that the commands of docs/tutorial.md print exactly the output shown there."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from agentgym_eval.cli.main import evaluate
from documents import ROOT, Block, blocks

TUTORIAL = ROOT / "docs/tutorial.md"


def test_python_code_prints_the_output_shown_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    shown = [
        (code, out) for code, out in pairwise(blocks(TUTORIAL)) if (code.language, out.language) == ("python", "text")
    ]
    assert shown
    for code, out in shown:
        exec(compile(code.body, str(TUTORIAL), "exec"), {})
        assert capsys.readouterr().out == out.body


PLAYED = [block for block in blocks(TUTORIAL) if "--policy oracle" in block.body or "--policy random" in block.body]


@pytest.mark.long
@pytest.mark.parametrize("block", [block for block in PLAYED if block.language == "console"], ids=["oracle", "random"])
def test_scripted_policies_print_the_output_shown(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (command,) = block.commands
    assert evaluate(shlex.split(command)[3:]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert printed == block.body.splitlines()[1:]
