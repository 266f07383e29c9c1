"""Compare runs by different numbers of processes, whose results differ by rounding only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from agentgym_envs import read_episodes
from agentgym_trainer.run.folder import RunFolder
from metric_lines import MEASURED
from safetensors.torch import load_file

PER_PROCESS = ("prefilled", "reused", "padding", "shared", "fill", "imbalance", "imbalance_dealt")
"""Metrics that depend on the number of processes, since caches and micro-batches aren't shared."""


def _comparable_metrics(line: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics of a step that don't depend on the number of processes, flattened."""
    flat: dict[str, Any] = {}
    for name, value in line.items():
        if name in MEASURED:
            continue
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": v for inner, v in _comparable_metrics(value).items()}
        elif name not in (*PER_PROCESS, "logprob_check_gap"):
            flat[name] = value
    return flat


def assert_same_runs(run: RunFolder, other: RunFolder) -> None:
    """Check metrics, replies, tokens and final weights of two runs of three steps."""
    lines, expected_lines = list(run.read_metrics()), list(other.read_metrics())
    assert len(lines) == len(expected_lines) == 3
    for line, expected in zip(map(_comparable_metrics, lines), map(_comparable_metrics, expected_lines), strict=True):
        assert line == {
            name: pytest.approx(value, abs=1e-4) if isinstance(value, float) else value
            for name, value in expected.items()
        }
    assert _replies(run) == _replies(other)
    assert _tokens(run) == _tokens(other) != []
    assert _advantages(run) == pytest.approx(_advantages(other), abs=2e-4)  # files have four decimal places
    weights, expected = (load_file(folder.model / "model.safetensors") for folder in (run, other))
    differences = torch.cat([(weights[name] - tensor).abs().flatten() for name, tensor in expected.items()])
    # Adam's first steps have the same length for any gradient, so tiny gradients are decided by rounding.
    assert (differences > 2e-5).float().mean() < 1e-3, "weights differ, not only those with tiny gradients"
    assert differences.max() < 1e-3, "weights differ by more than a step's length"


def _replies(run: RunFolder) -> dict[str, list[tuple[str, int, list[str]]]]:
    """Return the replies of every evaluation and every rollout, in the order of the files."""
    files = [*run.evaluations.iterdir(), *run.rollouts.glob("step-000???.jsonl")]
    return {
        path.name: [(e.task_id, e.sample, [turn.reply.text for turn in e.turns]) for e in read_episodes(path)]
        for path in files
    }


def _tokens(run: RunFolder) -> list[Any]:
    """Return the recorded tokens of every rollout, without the values that rounding may change."""
    return [
        {
            **line,
            "segments": [
                {**segment, "entropies": [], "logprobs": [], "advantages": []} for segment in line["segments"]
            ],
        }
        for line in _token_lines(run)
    ]


def _advantages(run: RunFolder) -> list[float]:
    """Return the advantages of all completion tokens that were trained on, in the order of the files."""
    segments = (segment for line in _token_lines(run) for segment in line["segments"])
    return [value for segment in segments for value in segment["advantages"] or () if value is not None]


def _token_lines(run: RunFolder) -> Iterator[dict[str, Any]]:
    for path in sorted(run.rollouts.glob("*.tokens.jsonl")):
        yield from map(json.loads, path.read_text().splitlines())
