"""Fixtures of the tests of runs: small evaluations of two policies in two environments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agentgym_eval.cli.main import evaluate
from agentgym_eval.reports import files
from several_runs import WORLDS


@pytest.fixture(scope="module")
def no_plots() -> Iterator[None]:
    """Skip the plots, which take most of the time of such small evaluations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "draw_curves", lambda folder, runs: {})
        yield


@pytest.fixture(scope="module")
def many(no_plots: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of each of two policies in each of two environments."""
    folder = tmp_path_factory.mktemp("many")
    assert evaluate([*WORLDS, "--policy", "oracle", "random", "--out", str(folder)]) == 0
    return folder
