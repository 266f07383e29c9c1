"""The numbers of a training run's metrics.jsonl as columns, read line by line as the file grows.

Only finite numbers are kept, and which records have null, as runs write a number that isn't finite; everything else is
left out. The files are never written.
"""

from __future__ import annotations

import json
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_LARGEST, _LARGEST_STEP = 1e300, 2**63
_TAIL = 64
_MAX_FILES = 512


@dataclass(slots=True)
class MetricColumns:
    """The metrics of a run. Nested metrics have dotted names, such as `seconds.rollout`."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    """The training step of each record, in file order; N of them."""
    rows: dict[str, array[int]] = field(default_factory=dict[str, "array[int]"])
    """For each metric, the records that have it, as indices into `steps`."""
    values: dict[str, array[float]] = field(default_factory=dict[str, "array[float]"])
    """For each metric, its values in these records."""
    nulls: dict[str, array[int]] = field(default_factory=dict[str, "array[int]"])
    """For each name, the records in which it is null."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Append the record of a step."""
        row = len(self.steps)
        self.steps.append(record["step"])
        for name, value in _numbers(record):
            if value is None:
                self.nulls.setdefault(name, array("q")).append(row)
            elif name != "step":
                self.rows.setdefault(name, array("q")).append(row)
                self.values.setdefault(name, array("d")).append(value)

    def column(self, name: str) -> tuple[Floats, Floats]:
        """Return the steps that have the metric, and its values; both empty if there are none."""
        if name not in self.rows:
            return np.empty(0), np.empty(0)
        return np.asarray(self.steps, dtype=np.float64)[np.asarray(self.rows[name])], np.asarray(self.values[name])

    def gaps(self, name: str) -> Floats:
        """Return the steps in which the metric is null and has no value in another record of the step; ascending."""
        nulls = np.asarray(self.steps, dtype=np.float64)[np.asarray(self.nulls.get(name, ()), dtype=np.int64)]
        return np.setdiff1d(nulls, self.column(name)[0])

    def dense(self, name: str) -> Floats:
        """Return the value of the metric in every record, with NaN where it is missing; shape (N,)."""
        dense = np.full(len(self.steps), np.nan)
        if name in self.rows:
            dense[np.asarray(self.rows[name])] = np.asarray(self.values[name])
        return dense


@dataclass(slots=True)
class _ReadFile:
    columns: MetricColumns
    inode: int
    offset: int
    tail: bytes


_files: OrderedDict[Path, _ReadFile] = OrderedDict()
_lock = threading.Lock()


def metric_columns(folder: Path) -> MetricColumns:
    """Return the metrics of a run's folder; without any if it has no readable metrics.jsonl.

    A file that only grew since the last call is read on from there. A last line without a line break is ignored.
    """
    path = folder / "metrics.jsonl"
    with _lock:
        try:
            _files[path] = read = _read_on(path, _files.get(path))
        except OSError:
            _files.pop(path, None)
            return MetricColumns()
        _files.move_to_end(path)
        while len(_files) > _MAX_FILES:
            _files.popitem(last=False)
        return read.columns


def _read_on(path: Path, known: _ReadFile | None) -> _ReadFile:
    with path.open("rb") as file:
        inode = path.stat().st_ino
        if known and known.inode == inode:
            file.seek(known.offset - len(known.tail))
        if not known or known.inode != inode or file.read(len(known.tail)) != known.tail:
            known = _ReadFile(MetricColumns(), inode, 0, b"")
            file.seek(0)
        content = file.read()
    complete = content[: content.rfind(b"\n") + 1]
    if not complete:
        return known
    columns = known.columns if not known.offset else _copy(known.columns)
    for line in complete.splitlines():
        record = _record(line)
        if record is not None:
            columns.add(record)
    return _ReadFile(columns, inode, known.offset + len(complete), (known.tail + complete)[-_TAIL:])


def _copy(columns: MetricColumns) -> MetricColumns:
    """Copy the columns, which another thread may be reading."""
    rows, nulls = ({name: rows[:] for name, rows in found.items()} for found in (columns.rows, columns.nulls))
    return MetricColumns(columns.steps[:], rows, {name: values[:] for name, values in columns.values.items()}, nulls)


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = record.get("step") if isinstance(record, dict) else None
    return record if type(step) is int and abs(step) < _LARGEST_STEP else None


def _numbers(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}.")
        elif value is None:
            yield f"{prefix}{name}", None
        elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST:  # also not NaN
            yield f"{prefix}{name}", float(value)
