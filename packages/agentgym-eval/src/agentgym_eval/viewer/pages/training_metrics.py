"""What a training run wrote down of each step, read from its metrics.jsonl. Missing and odd values are left out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentgym_eval.viewer.index.runs import Run
from agentgym_eval.viewer.pages.chart import Band

_WHY = {
    "begin": "",
    "steps": "the next stage of the schedule",
    "plateau": "success in evaluations had stopped rising",
    "cut": "many episodes were cut short while they still earned",
}
FIGURES = {
    "score": "Score in training",
    "shaped_return": "Shaped return in training",
    "turns": "Episode length in turns",
    "valid": "Valid action rate",
    "loss": "Loss",
    "advantage/mean_token": "Mean advantage of a token in the loss",
    "step_grouped": "Share of turns in a step group",
    "entropy": "Entropy",
    "mutual_information": "Mutual information of task and first reply",
    "group_return_std": "Standard deviation of returns within a group",
    "logprob_check_gap": "Gap between engine and learner",
    "ref_kl": "KL to the reference policy",
    "approx_kl": "KL to the behaviour policy",
    "clip_fraction": "Clip fraction",
    "grad_norm": "Gradient norm",
    "mean_token_accuracy": "Token accuracy",
    "rewards/accuracies": "Preference accuracy",
    "rewards/margins": "Reward margin",
    "lr": "Learning rate",
    "learning_rate": "Learning rate",
    "tokens_per_s": "Tokens per second",
    "data": "Training episodes",
}
"""Names in the metrics that get a small chart, and what people call them."""


def read_metrics(run: Run) -> list[dict[str, Any]]:
    """The lines of a run's metrics that name a step, in order; none where it wrote none."""
    path = run.path / "metrics.jsonl"
    try:
        stat = path.stat()
    except OSError:
        return []
    return _read(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=16)
def _read(path: Path, changed: int, size: int) -> list[dict[str, Any]]:
    """The lines of the file as it was when it had this time and size."""
    return list(_records(path))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # half a line, which a running process has not finished
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            yield record


def figure(record: Mapping[str, Any], *names: str) -> float | None:
    """The number under a name, or a name in a name; None where there is none."""
    value: Any = record
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class RunWarning:
    """What a run warned of after a step."""

    step: int
    id: str
    sentence: str


def warnings(lines: list[dict[str, Any]]) -> list[RunWarning]:
    """What a run warned of, in order."""
    found: list[RunWarning] = []
    for record in lines:
        listed = record.get("warnings")
        for each in listed if isinstance(listed, list) else ():
            if isinstance(each, dict) and isinstance(each.get("id"), str) and isinstance(each.get("sentence"), str):
                found.append(RunWarning(record["step"], each["id"], each["sentence"]))
    return found


def stages(lines: list[dict[str, Any]]) -> list[Band]:
    """The horizon's stages, one band each."""
    bands: list[Band] = []
    for record in lines:
        turns, stage = figure(record, "horizon"), record.get("stage")
        if turns is None or not isinstance(stage, dict):
            continue
        label, why = f"up to {turns:.0f} turns", str(stage.get("why") or "")
        why = _WHY.get(why, why)
        begun = bands.pop() if bands and bands[-1].label == label else None
        start = begun.start if begun else bands[-1].end if bands else record["step"] - 1
        bands.append(Band(start, record["step"], label, why))
    return bands
