"""Tests of reading `metrics.jsonl`, with damaged lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentgym_eval.storage.metrics_file import read_metrics
from agentgym_eval.util.errors import UsageError

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("damaged", ['{"step": 2', "[2]", '{"step": "2"}', "\xff"])
def test_damaged_lines_are_reported_or_skipped(tmp_path: Path, damaged: str) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(f'{{"step": 1}}\n{damaged}\n{{"step": 3}}\n{{"st'.encode("latin-1"))
    with pytest.raises(UsageError, match=r"metrics\.jsonl, line 2 is damaged: "):
        list(read_metrics(file))
    assert list(read_metrics(file, skip_damaged=True)) == [{"step": 1}, {"step": 3}]


def test_missing_file_has_no_lines(tmp_path: Path) -> None:
    assert list(read_metrics(tmp_path / "metrics.jsonl")) == []
