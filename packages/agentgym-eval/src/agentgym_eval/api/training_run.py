"""Training runs on disk, as any program reads them. Needs neither torch nor agentgym-trainer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from agentgym_envs import Episode, read_episodes

from agentgym_eval.api.comparing import report_of
from agentgym_eval.api.report import Report
from agentgym_eval.runs.comparisons import read_run
from agentgym_eval.storage.metrics_file import read_metrics
from agentgym_eval.storage.store import RUN
from agentgym_eval.util.errors import UsageError

SCHEMA_PREFIX = "agentgym.train/"
SUMMARY = "summary.json"
_EVALUATION = re.compile(r"(step|test)-(\d+)-(sampled|greedy)\.jsonl")


@dataclass(frozen=True, slots=True)
class TrainingEvaluation:
    """An evaluation of a training run: episodes of the model after a step."""

    step: int
    """The number of updates that the model had; 0 is the initial model."""
    decoding: Literal["sampled", "greedy"]
    test: bool
    """Whether it is on the test tasks, after training; else it is on held-out tasks during training."""
    path: Path
    """The file of its episodes, which `compare` takes, too."""

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes."""
        return read_episodes(self.path)

    def report(self, *, k: Sequence[int] = (), seed: int = 0) -> Report:
        """Return the metrics with intervals.

        Args:
            k: Values of k for pass@k. Default: the powers of two up to the attempts per task.
            seed: Random seed of the confidence intervals.
        """
        return report_of(read_run(self.path, k, seed))


@dataclass(frozen=True)
class TrainingRun:
    """A training run, finished or not. Everything is read from its folder when it is asked for."""

    folder: Path

    @property
    def recipe(self) -> str:
        """The name of the recipe."""
        return str(self._record.get("recipe", ""))

    @property
    def kind(self) -> str:
        """The kind of training: `rl`, `sft`, `dpo` or `evol`."""
        return str(self._record.get("kind", ""))

    @property
    def settings(self) -> Mapping[str, Any]:
        """All settings, as JSON values."""
        return self._record.get("config", {})

    @property
    def done(self) -> bool:
        """Whether the run is complete."""
        return (self.folder / SUMMARY).is_file()

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Yield the metrics of each step so far, as in `metrics.jsonl`.

        Raises:
            UsageError: if a line is damaged.
        """
        return read_metrics(self.folder / "metrics.jsonl")

    @property
    def checkpoints(self) -> Sequence[Path]:
        """The folders of complete checkpoints, the last one last. `hf:FOLDER` is the policy of one."""
        found = self.folder.glob("checkpoints/step-*")
        return sorted((path for path in found if path.is_dir()), key=lambda path: int(path.name.rpartition("-")[2]))

    @property
    def best_checkpoint(self) -> Path | None:
        """The folder of the checkpoint with the highest success in evaluations; None if there is none."""
        best = self.folder / "checkpoints" / "best"
        return best.resolve() if best.is_dir() else None

    @property
    def model(self) -> Path | None:
        """The folder of the final model, which `hf:FOLDER` and `from_pretrained` load; None before the end."""
        model = self.folder / "model"
        return model if model.is_dir() else None

    @property
    def model_step(self) -> int | None:
        """The number of updates of the final model: those of the best checkpoint, if the run exports it; None before
        the end.
        """
        step = read_json(self.folder / SUMMARY).get("model_step")
        return None if step is None else int(step)

    @property
    def evaluations(self) -> Sequence[TrainingEvaluation]:
        """All evaluations so far: those during training by step, then those on test tasks."""
        found = [(path, _EVALUATION.fullmatch(path.name)) for path in self.folder.glob("evaluations/*.jsonl")]
        read = [_evaluation(path, match) for path, match in found if match]
        return sorted(read, key=lambda evaluation: (evaluation.test, evaluation.step, evaluation.decoding))

    @cached_property
    def _record(self) -> dict[str, Any]:
        return read_json(self.folder / RUN)


def _evaluation(path: Path, name: re.Match[str]) -> TrainingEvaluation:
    when, step, decoding = name.groups()
    return TrainingEvaluation(int(step), "greedy" if decoding == "greedy" else "sampled", when == "test", path)


def read_json(file: Path) -> dict[str, Any]:
    """Return the content of a JSON file of a run folder; empty if it doesn't exist.

    Raises:
        UsageError: if it can't be read.
    """
    if not file.is_file():
        return {}
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{file} can't be read: {error}") from error
