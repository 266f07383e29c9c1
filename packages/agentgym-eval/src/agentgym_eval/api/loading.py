"""Reading finished and unfinished runs from their folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from agentgym_eval.api.comparing import report_of
from agentgym_eval.api.report import Report
from agentgym_eval.api.training_run import SCHEMA_PREFIX, TrainingRun, read_json
from agentgym_eval.runs.comparisons import read_run
from agentgym_eval.storage.store import RUN, USAGE
from agentgym_eval.util.errors import UsageError


def load_run(folder: str | PathLike[str], *, k: Sequence[int] = (), seed: int = 0) -> Report | TrainingRun:
    """Return the run in a folder: a `Report` of an evaluation, or a `TrainingRun`.

    `agentgym_trainer.load_run` reads training runs with their configuration as `RLConfig`, `SFTConfig` and so on.

    Args:
        folder: A folder of `evaluate` or `train`, or a file of episodes, which is read as an evaluation.
        k: Values of k for pass@k of an evaluation. Default: the powers of two up to the attempts per task.
        seed: Random seed of its confidence intervals.

    Raises:
        UsageError: if there is no run, or several, or it can't be read.
    """
    path = Path(folder)
    if str(read_json(path / RUN).get("schema", "")).startswith(SCHEMA_PREFIX):
        return TrainingRun(path)
    if path.is_dir() and not (path / "episodes.jsonl").exists():
        runs = sorted(str(file.parent) for file in path.glob("*/run.json"))
        hint = f" Name one of the runs in it: {', '.join(runs)}." if runs else ""
        raise UsageError(f"{path} holds no run.{hint}")
    run = read_run(path, k, seed)
    used = read_json(path / USAGE)
    about = {**run.evaluated.about, **({"usage": used} if used else {})}
    return report_of(replace(run, evaluated=replace(run.evaluated, about=about)))
