"""Tests that docs/reference is up to date with the docstrings, and complete."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields

import agentgym_envs
import pytest
from agentgym_eval.runs.settings import CollectSettings, EvaluateSettings
from dev_packages import require_packages
from documents import ROOT

SCRIPT = ROOT / "scripts/make_reference.py"
REFERENCE = ROOT / "docs/reference"


def page(module: str) -> str:
    return (REFERENCE / f"{module}.md").read_text(encoding="utf-8")


def test_every_public_name_is_in_the_reference() -> None:
    headings = set(re.findall(r"^### (\S+)$", page("agentgym_envs"), re.MULTILINE))
    assert set(agentgym_envs.__all__) <= headings
    assert "#### TextEnv.oracle" in page("agentgym_envs")


@pytest.mark.long
def test_the_reference_is_up_to_date() -> None:
    require_packages("ruff")
    command = [sys.executable, str(SCRIPT), "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    for settings in (EvaluateSettings, CollectSettings):  # including fields of private base classes
        _, _, section = page("agentgym_eval.runs.settings").partition(f"### {settings.__name__}\n")
        section = section.partition("\n### ")[0]
        assert all(f"| `{field.name}` |" in section for field in fields(settings))
        assert "_Play" not in section
