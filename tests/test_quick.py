"""Tests that `pytest -m quick` starts no processes, servers or browsers.

The imports and fixtures of its files are checked, since the duration of a test depends on the machine.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted(path for path in ROOT.glob("packages/*/tests/**/test_*.py") if "mark.quick" in path.read_text("utf-8"))
STARTING_MODULES = {
    "asyncio",
    "httpx",
    "multiprocessing",
    "playwright",
    "psutil",
    "socket",
    "starlette",
    "subprocess",
    "uvicorn",
}
STARTING_FIXTURES = {"browser", "chromium", "client", "far", "java", "lucene", "serve", "server", "session"}
PATHS = {"test_evaluate_writes_a_report_and_prints_a_table", "test_a_step_has_a_line_with_all_that_happened"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_quick_tests_start_no_processes(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if "\npytestmark = pytest.mark.quick\n" not in path.read_text(encoding="utf-8"):
        quick = [node for node in tree.body if isinstance(node, ast.FunctionDef) and "mark.quick" in _marks(node)]
        assert {node.name for node in quick} <= PATHS
        return
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert STARTING_MODULES.isdisjoint(name.split(".")[0] for name in names)
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    assert STARTING_FIXTURES.isdisjoint(argument.arg for test in tests for argument in test.args.args)
    assert not any("mark.long" in _marks(test) for test in tests)


def _marks(test: ast.FunctionDef) -> str:
    return " ".join(map(ast.unparse, test.decorator_list))


def test_both_end_to_end_tests_are_quick() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in FILES)
    assert all(f"@pytest.mark.quick\ndef {name}(" in sources for name in PATHS)
