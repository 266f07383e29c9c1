"""Checkpoints: folders that `from_pretrained` loads as they are, plus what an exact continuation needs.

Written under another name and renamed when complete, so a folder called `step-…` is always whole.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentgym_trainer.learner import Learner

_NAME = re.compile(r"step-(\d{6})")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come. All else (tasks, seeds, horizon) is a function of the step."""

    step: int = 0
    """Updates done."""
    env_steps: int = 0
    """Turns played in training."""


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder = folder
        self._keep = keep

    def latest(self) -> Path | None:
        """The checkpoint of the highest step, or None."""
        return max(self._all(), default=None)

    def save(self, learner: Learner, tokenizer: Any, progress: Progress) -> Path:
        """Write a checkpoint and remove those that are no longer kept."""
        self.folder.mkdir(parents=True, exist_ok=True)
        final = self.folder / f"step-{progress.step:06d}"
        unfinished = self.folder / f".{final.name}"
        for leftover in (unfinished, final):
            if leftover.exists():
                shutil.rmtree(leftover)
        # Weights, optimizer, learning-rate schedule and generators.
        learner.accelerator.save_state(str(unfinished))
        learner.accelerator.unwrap_model(learner.model).config.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        (unfinished / "progress.json").write_text(json.dumps(asdict(progress)))
        unfinished.rename(final)
        for old in sorted(self._all())[: -self._keep]:
            shutil.rmtree(old)
        return final

    @staticmethod
    def load(path: Path, learner: Learner) -> Progress:
        """Bring the learner to where it was."""
        learner.accelerator.load_state(str(path))
        return Progress(**json.loads((path / "progress.json").read_text()))

    def _all(self) -> list[Path]:
        return [path for path in self.folder.glob("step-*") if _NAME.fullmatch(path.name)]
