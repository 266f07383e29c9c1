"""The folder of a training run: what it was told, how it went, what it left."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentgym_envs import Episode, read_episodes
from agentgym_eval.errors import UsageError
from agentgym_eval.report import versions

from agentgym_trainer.config import Config
from agentgym_trainer.config_json import from_json, to_json

SCHEMA = "agentgym.train/1"


class RunFolder:
    """Names and files of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "run.json"
        self.metrics = path / "metrics.jsonl"
        self.start = path / "start"
        """The model that reinforcement learning began with, when it was made here."""
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        """The model at the end."""
        self.evaluations = path / "evaluations"
        self.curve = path / "curve.png"
        self.summary = path / "summary.json"

    @classmethod
    def create(cls, path: Path, config: Config, recipe: str) -> RunFolder:
        """Begin a run.

        Raises:
            UsageError: when there is something in the folder already.
        """
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(f"{path} is not an empty folder; choose another --out, or go on with --resume {path}.")
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        record = {
            "schema": SCHEMA,
            "recipe": recipe,
            "command": sys.argv,
            "versions": versions(),
            "config": to_json(config),
        }
        _write(folder.settings, json.dumps(record, indent=2) + "\n")
        return folder

    @classmethod
    def open(cls, path: Path) -> tuple[RunFolder, Config, str]:
        """A run begun before, its configuration and the name of its recipe.

        Raises:
            UsageError: when the folder holds no run, or one with settings that don't exist.
        """
        folder = cls(path)
        if not folder.settings.is_file():
            raise UsageError(f"{path} holds no training run ({folder.settings.name} is missing).")
        try:
            record = json.loads(folder.settings.read_text())
            return folder, from_json(Config, record["config"]), record["recipe"]
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{folder.settings} can't be used: {error}") from error

    def discard(self) -> None:
        """Remove the folder if nothing has come of the run yet."""
        if list(self.path.iterdir()) == [self.settings]:
            self.settings.unlink()
            self.path.rmdir()

    def log(self, metrics: dict[str, Any]) -> None:
        """Append one line to the metrics."""
        with self.metrics.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(metrics) + "\n")

    def read_metrics(self) -> Iterator[dict[str, Any]]:
        """The lines of the metrics; half a line at the end, left by a killed process, is passed over."""
        if self.metrics.exists():
            for line in self.metrics.read_text(encoding="utf-8").splitlines(keepends=True):
                if line.endswith("\n"):
                    yield json.loads(line)

    def rewind(self, step: int) -> None:
        """Take back lines and evaluations behind `step`: a resumed run makes them again, with weights of its own."""
        kept = [line for line in self.read_metrics() if line["step"] <= step]
        _write(self.metrics, "".join(json.dumps(line) + "\n" for line in kept))
        for path in self.evaluations.glob("step-*.jsonl"):
            if _step(path) > step:
                path.unlink()

    def save_evaluation(self, step: int, manner: str, episodes: Sequence[Episode]) -> None:
        """Keep the episodes of an evaluation."""
        self.evaluations.mkdir(exist_ok=True)
        _write(self._evaluation(step, manner), "".join(f"{episode.to_json()}\n" for episode in episodes))

    def read_evaluation(self, step: int, manner: str) -> list[Episode] | None:
        """The episodes of an evaluation, or None when it hasn't been made."""
        path = self._evaluation(step, manner)
        return list(read_episodes(path)) if path.exists() else None

    def evaluated_steps(self, manner: str) -> list[int]:
        """The steps at which there was an evaluation, ascending."""
        return sorted(_step(path) for path in self.evaluations.glob(f"step-*-{manner}.jsonl"))

    def _evaluation(self, step: int, manner: str) -> Path:
        return self.evaluations / f"step-{step:06d}-{manner}.jsonl"


def _step(evaluation: Path) -> int:
    return int(evaluation.name.split("-")[1])


def _write(path: Path, text: str) -> None:
    """All of it or nothing, also when the power fails."""
    unfinished = path.with_name(f".{path.name}")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
