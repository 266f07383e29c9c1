"""Reading the metrics.jsonl of a training run. Missing and invalid values are left out."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentgym_eval.storage import metrics_file
from agentgym_eval.viewer.index.runs import Run
from agentgym_eval.viewer.pages.chart import Band

_STAGE_REASONS = {
    "begin": "",
    "steps": "the next stage of the schedule",
    "plateau": "success in evaluations had plateaued",
    "cut": "many episodes were truncated while still earning reward",
}
CHARTED = {
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
    "logprob_check_gap": "Log-probability gap between engine and trainer",
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
"""The metrics that get a small chart, with its title."""


def read_metrics(run: Run) -> list[dict[str, Any]]:
    """Return the records with a step from a run's metrics.jsonl, in order; empty if the file doesn't exist."""
    path = run.path / "metrics.jsonl"
    try:
        stat = path.stat()
    except OSError:
        return []
    return _read(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=16)
def _read(path: Path, mtime: int, size: int) -> list[dict[str, Any]]:
    """Read the records, cached by the file's modification time and size."""
    return list(metrics_file.read_metrics(path, skip_damaged=True))


def number(record: Mapping[str, Any], *keys: str) -> float | None:
    """Return the finite number at a path of nested keys; None if there is none."""
    value: Any = record
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) and abs(value) <= sys.float_info.max else None


@dataclass(frozen=True, slots=True)
class RunWarning:
    """A warning that a run recorded after a step."""

    step: int
    id: str
    sentence: str


def warnings(lines: list[dict[str, Any]]) -> list[RunWarning]:
    """Return the recorded warnings, in order."""
    found: list[RunWarning] = []
    for record in lines:
        recorded = record.get("warnings")
        for each in recorded if isinstance(recorded, list) else ():
            if isinstance(each, dict) and isinstance(each.get("id"), str) and isinstance(each.get("sentence"), str):
                found.append(RunWarning(record["step"], each["id"], each["sentence"]))
    return found


def stages(lines: list[dict[str, Any]]) -> list[Band]:
    """Return one band for each stage of the horizon schedule; of a repeated step, the last record counts."""
    bands: list[Band] = []
    latest = {record["step"]: record for record in lines if isinstance(record.get("stage"), dict)}
    for _, record in sorted(latest.items()):
        turns, stage = number(record, "horizon"), record["stage"]
        if turns is None:
            continue
        label, reason = f"up to {turns:.0f} turns", str(stage.get("why") or "")
        reason = _STAGE_REASONS.get(reason, reason)
        current = bands.pop() if bands and bands[-1].label == label else None
        start = current.start if current else bands[-1].end if bands else record["step"] - 1
        bands.append(Band(start, record["step"], label, reason))
    return bands
