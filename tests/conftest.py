from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Makes `documents`, and the test helpers of eval and the trainer, importable.
PACKAGES = HERE.parent / "packages"
sys.path[:0] = [str(HERE), *(str(PACKAGES / name / "tests") for name in ("agentgym-eval", "agentgym-trainer"))]


@pytest.fixture
def benchmarks_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the modules in `benchmarks` importable."""
    monkeypatch.syspath_prepend(str(HERE.parent / "benchmarks"))
