"""Tests that docs/reference is up to date with the docstrings, and complete."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from importlib import import_module

import pytest
from agentgym_eval.runs.settings import CollectSettings, EvaluateSettings
from dev_packages import require_packages
from documents import ROOT

SCRIPT = ROOT / "scripts/make_reference.py"
REFERENCE = ROOT / "docs/reference"


def page(module: str) -> str:
    return (REFERENCE / f"{module}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", ["agentgym_envs", "agentgym_eval", "agentgym_trainer"])
def test_every_public_name_is_in_the_reference(package: str) -> None:
    links = dict(re.findall(r"^\| \[`(\w+)`\]\(([\w.]+)\.md#\w+\) \|", page(package), re.MULTILINE))
    assert set(links) == set(import_module(package).__all__)
    for name, module in links.items():
        assert f"\n### {name}\n" in page(module)


def test_no_page_is_too_long_to_find_something() -> None:
    assert "#### TextEnv.oracle" in page("agentgym_envs.core")
    assert all(len(path.read_text(encoding="utf-8").splitlines()) < 1000 for path in REFERENCE.glob("*.md"))


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
