"""Training runs and evaluations by the ordinary commands, for `from_data.py` and `leaderboard.py`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from agentgym_trainer.recipes import RECIPES

TOOK = "took.json"
"""File in a run folder with the duration of its command; it exists if and only if the run is finished."""


@dataclass(frozen=True, slots=True)
class Training:
    """A training run of a recipe."""

    recipe: str
    runs: Path
    """Folder of the run folders."""
    name: str = ""
    """Name of the run folder, if not the recipe's."""
    flags: str = ""
    """Additional flags; RUNS stands for the folder of the run folders."""

    @property
    def path(self) -> Path:
        """Run folder."""
        return self.runs / (self.name or self.recipe)

    @property
    def command(self) -> str:
        """The command, with the initial model of the recipe in the same folder of run folders."""
        named = Path(RECIPES[self.recipe].config.model)
        initial = self.runs / named.relative_to("runs") if named.parts[0] == "runs" else named
        model = "" if initial == named or "--model" in self.flags else f"--model {initial}"
        flags = self.flags.replace("RUNS", str(self.runs))
        return " ".join(filter(None, ("uv run train", self.recipe, model, flags, f"--out {self.path}")))


def train(training: Training, *, quick: bool) -> None:
    """Run the command of a training run, or resume it, and record its duration, if that isn't done yet."""
    if (training.path / TOOK).exists():
        return
    resumed = (training.path / "run.json").exists()
    began = time.monotonic()
    command = f"{training.command}{' --tiny' if quick else ''}"
    cpu = call(f"uv run train --resume {training.path}" if resumed else command)
    # The duration of a resumed run is that of its last process.
    took = {"seconds": round(time.monotonic() - began, 1), "cpu_seconds": round(cpu, 1), "resumed": resumed}
    (training.path / TOOK).write_text(json.dumps(took) + "\n")


def call(command: str) -> float:
    """Run a command with one thread, and return the CPU seconds of its processes.

    Raises:
        SystemExit: If it fails.
    """
    print(command, flush=True)
    process = subprocess.Popen(shlex.split(command), env=os.environ | {"OMP_NUM_THREADS": "1"})
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"The command failed: {command}")
    return used.ru_utime + used.ru_stime
