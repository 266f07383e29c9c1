"""What the benchmarks share that run ordinary commands, just as anyone would (`from_data.py`, `leaderboard.py`)."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from agentgym_trainer.recipes import RECIPES
from rich.console import Console

TOOK = "took.json"
"""In a run's folder when it has ended: what its command took."""


@dataclass(frozen=True, slots=True)
class Training:
    """A recipe with its command."""

    recipe: str
    runs: Path
    name: str = ""
    """Of the folder, where it isn't the recipe's."""
    flags: str = ""
    """Beside the recipe's settings. RUNS stands for the folder of the runs."""

    @property
    def path(self) -> Path:
        """Folder of the run."""
        return self.runs / (self.name or self.recipe)

    @property
    def command(self) -> str:
        """As anyone would run it."""
        named = Path(RECIPES[self.recipe].config.model)
        begun_with = self.runs / named.relative_to("runs") if named.parts[0] == "runs" else named
        model = "" if begun_with == named or "--model" in self.flags else f"--model {begun_with}"
        flags = self.flags.replace("RUNS", str(self.runs))
        return " ".join(filter(None, ("uv run train", self.recipe, model, flags, f"--out {self.path}")))


def train(training: Training, console: Console, *, quick: bool) -> None:
    """Run the command of a recipe, or go on with it, and leave what it took; nothing where that has been done."""
    if (training.path / TOOK).exists():
        return
    begun = (training.path / "run.json").exists()
    began = time.monotonic()
    command = f"{training.command}{' --tiny' if quick else ''}"
    cpu = call(f"uv run train --resume {training.path}" if begun else command, console)
    # Of a run that was interrupted only the last sitting is known.
    took = {"seconds": round(time.monotonic() - began, 1), "cpu_seconds": round(cpu, 1), "resumed": begun}
    (training.path / TOOK).write_text(json.dumps(took) + "\n")


def call(command: str, console: Console) -> float:
    """Run a command on one thread, so that figures don't hang on how many a machine has. Returns its seconds of CPU,
    those of all its processes.

    Raises:
        SystemExit: when it fails.
    """
    console.print(command, highlight=False, soft_wrap=True, markup=False)
    process = subprocess.Popen(shlex.split(command), env=os.environ | {"OMP_NUM_THREADS": "1"})
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"This failed: {command}")
    return used.ru_utime + used.ru_stime
