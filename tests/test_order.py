"""Tests of the test order: slow files come first, and files of one folder are adjacent."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parent.parent


def test_long_files_come_first_and_all_others_stay_in_their_order() -> None:
    conftest = runpy.run_path(str(ROOT / "conftest.py"))
    items = [SimpleNamespace(path=path) for path in sorted(ROOT.glob("**/tests/**/test_*.py"))]
    items = [item for item in items if ".venv" not in item.path.parts]
    ordered = list(items)
    conftest["pytest_collection_modifyitems"](ordered)
    longest = conftest["_LONGEST"]
    assert tuple(item.path.name for item in ordered[: len(longest)]) == longest
    assert ordered[len(longest) :] == [item for item in items if item.path.name not in longest]
