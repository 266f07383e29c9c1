"""Reading `metrics.jsonl` of training runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentgym_eval.util.errors import UsageError


def read_metrics(path: Path, *, skip_damaged: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the lines of metrics; an incomplete last line, left by a killed process, is ignored.

    Raises:
        UsageError: if any other line is damaged, unless `skip_damaged`; the message has its number.
    """
    if not path.exists():
        return
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or type(record.get("step")) is not int:
                raise ValueError("it is not the record of a step")
        except (ValueError, RecursionError) as error:
            if skip_damaged or not line.endswith(b"\n"):
                continue
            message = f"{path}, line {number} is damaged: {error}. Restore the file from a backup."
            raise UsageError(message) from error
        if line.endswith(b"\n"):
            yield record
