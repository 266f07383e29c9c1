"""Tests of the test order: slow files come first, and files of one folder are adjacent."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parent.parent


def test_slowest_files_run_first_and_others_keep_their_order() -> None:
    conftest = runpy.run_path(str(ROOT / "conftest.py"))
    paths = [*ROOT.glob("packages/*/tests/**/test_*.py"), *ROOT.glob("tests/**/test_*.py")]
    items = [SimpleNamespace(path=path) for path in sorted(paths)]
    ordered = list(items)
    conftest["pytest_collection_modifyitems"](ordered)
    slowest = conftest["_SLOWEST"]
    assert all(item.path.match(pattern) for item, pattern in zip(ordered, slowest, strict=False))
    assert ordered[len(slowest) :] == [item for item in items if not any(map(item.path.match, slowest))]
