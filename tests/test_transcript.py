"""Tests of `scripts/make_transcript.py`, which records sessions in tmux."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
from documents import ROOT

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    if shutil.which("tmux") is None:
        pytest.skip("There is no tmux: install it with the system's package manager.")
    return runpy.run_path(str(ROOT / "scripts/make_transcript.py"))


def test_commands_are_played_in_one_shell(script: dict[str, Any], tmp_path: Path) -> None:
    session = script["Session"](tmp_path, tmp_path / "wheels")
    try:
        assert session.play("cd .. && name=value")[0] == 0
        assert session.play("false")[0] == 1
        assert session.play("echo $name $PIP_FIND_LINKS | tail -c 7")[0] == 0
        code, seconds = session.play("seq 3")
    finally:
        shown = session.screen()
        session.close()
    assert (code, seconds > 0) == (0, True)
    assert shown.startswith("$ cd .. && name=value\n$ false\n$ echo $name")
    assert shown.endswith("wheels\n$ seq 3\n1\n2\n3\n")
