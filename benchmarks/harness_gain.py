"""Train an agent of another program: success on held-out tasks before and after, by seed.

    uv run --group dev python benchmarks/harness_gain.py --seeds 0 1 2

A run is the recipe `quickstart` on one thread, except that `openai_loop.py`, a loop on the unmodified client of OpenAI,
plays all episodes after the warm start: those of training, and the test tasks before and after it. The command finishes
all runs, resumes interrupted ones, and prints the gain of each with its interval over tasks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agentgym_eval.metrics.comparison import compare
from agentgym_trainer.run.folder import RunFolder
from harness import run_parallel, show, study_arguments, write_json
from outcomes import commits

HARNESS = "openai_loop:play"


def train(path: Path, seed: int, flags: Sequence[str]) -> str:
    """Finish a run by the command `train`, in a process of its own, if that isn't done yet."""
    if not RunFolder(path).summary.exists():
        resume = ["--resume", str(path)]
        settings = ["--seed", str(seed), "--threads", "1", "--harness", HARNESS, "--out", str(path), *flags]
        begun = (path / "run.json").exists()
        command = [sys.executable, "-m", "agentgym_trainer", *(resume if begun else ["quickstart", *settings])]
        path.parent.mkdir(parents=True, exist_ok=True)
        modules = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        with path.with_suffix(".log").open("a") as log:
            subprocess.run(command, stdout=log, stderr=log, check=True, env=os.environ | {"PYTHONPATH": modules})
    return f"seed {seed}"


def record_of(path: Path, seed: int) -> dict[str, Any]:
    """Return the gain in success on the test tasks of a finished run, as JSON values."""
    folder = RunFolder(path)
    steps = folder.evaluated_steps("sampled", test=True)
    before, after = (folder.read_evaluation(step(steps), "sampled", test=True) or [] for step in (min, max))
    failed = [sum(episode.failed for episode in episodes) for episodes in (before, after)]
    found = compare(before, after, names=("before", "after"), seed=seed).to_dict()
    known = {"seed": seed, "updates": max(steps), "tasks": found["tasks"], "failed": failed, "commit": commits([path])}
    return known | found["success"]


def main() -> None:
    """Finish the runs, and print the table."""
    settings, _ = study_arguments(__doc__)
    flags = ["--tiny"] if settings.quick else []
    paths = {seed: settings.out.resolve() / f"seed-{seed}" for seed in settings.seeds}
    run_parallel([partial(train, path, seed, flags) for seed, path in paths.items()], settings.processes)
    records = [record_of(path, seed) for seed, path in paths.items()]
    show("Success on test tasks, agent loop on the client of OpenAI", [_row(record) for record in records])
    write_json(settings.report and settings.report / "harness-gain.json", records)


def _row(record: dict[str, Any]) -> dict[str, str]:
    gain = record["difference"]
    return {
        "seed": str(record["seed"]),
        "updates": str(record["updates"]),
        "tasks": str(record["tasks"]),
        "failed before, after": f"{record['failed'][0]}, {record['failed'][1]}",
        "before": f"{record['first']:.1%}",
        "after": f"{record['second']:.1%}",
        "gain": f"{gain['mean']:+.1%} ({gain['low']:+.1%} to {gain['high']:+.1%})",
    }


if __name__ == "__main__":
    main()
