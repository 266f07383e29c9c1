"""Tests that names in the glossary exist, and that public texts don't use outdated terms."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from agentgym_envs.cli.flags import flag_names
from agentgym_eval.runs.settings import EvaluateSettings
from agentgym_trainer.algorithms import PRESETS
from agentgym_trainer.cli import _parse
from agentgym_trainer.recipes import RECIPES
from documents import ROOT

GLOSSARY = ROOT / "docs/glossary.md"
SOURCES = sorted((ROOT / "packages").glob("*/src/**/*.py"))
# Terms and phrases of earlier versions.
OUTDATED = [
    "said tokens?",
    "players?",
    "dealt",
    "lessons?",
    "pupils?",
    "predecessor",
    "whoever",
    "anew",
    "hangs on",
    "knows no",
]
PUBLIC = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/howto").glob("*.md")),
    *sorted((ROOT / "docs/reference").glob("*.md")),
    *sorted((ROOT / "packages").glob("*/README.md")),
    *sorted((ROOT / "packages/agentgym-eval/src/agentgym_eval/viewer/templates").glob("*.html")),
]


@cache
def rows() -> list[list[str]]:
    lines = [line for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@cache
def names() -> set[str]:
    """Return the classes, functions and constants of the packages, and attributes as `Class.attribute`."""
    found = set[str]()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found |= {node.name, *(f"{node.name}.{name}" for name in _members(node))}
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def _members(owner: ast.ClassDef) -> set[str]:
    methods = {node.name for node in owner.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    fields = {
        node.target.id for node in owner.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    own = {
        node.attr
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    return methods | fields | own


@cache
def flags() -> set[str]:
    found = {f"--{name}" for name in flag_names(EvaluateSettings)}
    for recipe in RECIPES:
        found |= {f"--{name}" for name in flag_names(_parse([recipe])[1])}
    for preset in PRESETS:
        found |= {f"--{name}" for name in flag_names(_parse(["quickstart", "--algorithm", preset])[1])}
    return {flag.replace("_", "-") for flag in found}


def test_the_glossary_is_sorted() -> None:
    terms = [row[0] for row in rows()]
    assert len(terms) >= 40
    assert terms == sorted(terms, key=str.lower)
    assert {len(row) for row in rows()} == {6}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_names_in_the_glossary_exist(row: list[str]) -> None:
    for name in re.findall(r"`([^`]+)`", row[2]):
        if name.startswith("--"):
            assert name in flags() or any(flag.startswith(f"{name}.") for flag in flags()), name
        elif re.fullmatch(r"[A-Z]\w*(\.\w+)?", name):
            assert name in names(), name


@pytest.mark.parametrize("path", PUBLIC, ids=lambda path: str(path.relative_to(ROOT)))
def test_public_texts_use_no_outdated_terms(path: object) -> None:
    text = path.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    code_free = re.sub(r"`[^`]*`", "", text)
    found = re.findall(rf"\b(?:{'|'.join(OUTDATED)})\b", code_free, re.IGNORECASE)
    assert not found
