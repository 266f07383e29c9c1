"""Tests of the numbers of a metrics.jsonl as columns."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentgym_eval.viewer.index.metric_columns import MetricColumns, metric_columns

pytestmark = pytest.mark.quick


def add(folder: Path, *records: dict[str, Any], end: str = "\n") -> None:
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write("\n".join(map(json.dumps, records)) + end)


def column(columns: MetricColumns, name: str) -> dict[float, float]:
    steps, values = columns.column(name)
    return dict(zip(map(float, steps), map(float, values), strict=True))


def test_nested_numbers_are_columns_and_everything_else_is_left_out(tmp_path: Path) -> None:
    bad = {"loss": float("nan"), "inf": float("inf"), "huge": 10**400, "flag": True, "none": None, "words": ["a"]}
    add(tmp_path, {"step": 1, "loss": 2, "seconds": {"rollout": 0.5}}, {"step": 2, **bad}, {"step": 4, "loss": -1.5})
    columns = metric_columns(tmp_path)
    assert sorted(columns.rows) == ["loss", "seconds.rollout"]
    assert column(columns, "loss") == {1: 2, 4: -1.5}
    np.testing.assert_array_equal(columns.dense("loss"), [2, np.nan, -1.5])
    assert column(columns, "missing") == {}


def test_damaged_lines_are_skipped_and_an_incomplete_one_waits(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(
        b'\xff\xfe\n[1]\n{"step": "one", "loss": 1}\n{"step": 9223372036854775808, "loss": 1}\n'
        + b'{"step": 1, "deep": '
        + b"[" * 100_000
        + b'\n{"step": 1, "loss": 3}\n'
    )
    add(tmp_path, {"step": 2, "loss": 4}, end="")
    assert column(metric_columns(tmp_path), "loss") == {1: 3}
    add(tmp_path, end="\n")
    assert column(metric_columns(tmp_path), "loss") == {1: 3, 2: 4}


def test_growing_file_is_continued_and_earlier_columns_stay_as_they_were(tmp_path: Path) -> None:
    add(tmp_path, {"step": 1, "loss": 1})
    first = metric_columns(tmp_path)
    assert metric_columns(tmp_path) is first
    add(tmp_path, {"step": 2, "loss": 2, "kl": 5})
    assert column(metric_columns(tmp_path), "loss") == {1: 1, 2: 2}
    assert column(metric_columns(tmp_path), "kl") == {2: 5}
    assert column(first, "loss") == {1: 1}


@pytest.mark.parametrize("in_place", [True, False])
def test_file_rewound_by_resume_is_read_again(tmp_path: Path, in_place: bool) -> None:
    add(tmp_path, *({"step": step, "loss": step} for step in range(1, 6)))
    metric_columns(tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)[:2]
    lines += [json.dumps({"step": step, "loss": 10 * step}) + "\n" for step in range(3, 9)]
    target = tmp_path / ("metrics.jsonl" if in_place else "other")
    target.write_text("".join(lines))
    target.replace(tmp_path / "metrics.jsonl")
    assert column(metric_columns(tmp_path), "loss") == {1: 1, 2: 2} | {step: 10 * step for step in range(3, 9)}
    os.truncate(tmp_path / "metrics.jsonl", len(lines[0]))
    assert column(metric_columns(tmp_path), "loss") == {1: 1}
    (tmp_path / "metrics.jsonl").unlink()
    assert metric_columns(tmp_path).rows == {}
