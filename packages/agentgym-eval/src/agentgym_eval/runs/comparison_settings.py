"""Settings of `compare`, as a frozen dataclass that also defines the command line.

Nothing heavy is imported here, because `--help` imports this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from agentgym_envs.util.flag_markers import arg, positional, switch

from agentgym_eval.util.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """Compare runs on the tasks that they share, each with the first run, task by task.

    A run is a folder written by `evaluate` (a folder of several runs stands for all of them), a training run, of which
    the last evaluation counts (on test tasks if it has one), or a file of episodes, such as another evaluation of a
    training run. Exit codes: 0 for success, 2 when the runs can't be compared.
    """

    runs: Annotated[tuple[Path, ...], positional()]
    """Two or more folders of `evaluate` or `train`, or files of episodes. Each is compared with the first."""
    against: tuple[Path, ...] = ()
    """Runs of a second training method, as many as there are of the first and in the same order of training seeds. Each
    is compared with the run of the same seed, and the two methods are compared over all seeds."""
    k: tuple[int, ...] = ()
    """Values of k for which to report pass@k and pass^k. Default: the powers of two up to the attempts per task."""
    seed: int = 0
    """Random seed of the confidence intervals and paired tests."""
    forensics: Annotated[bool, switch()] = False
    """Measure the expert's distances in unsuccessful episodes, as evaluate does, where they aren't known yet, and write
    them next to the episodes, also for evaluations of a training run."""
    out: Annotated[Path | None, arg(metavar="PATH")] = None
    """Folder for the comparison as HTML, Markdown and plots. Without it, only the table is printed."""

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UsageError(f"--seed must be 0 or more, not {self.seed}.")
        if any(k < 1 for k in self.k):
            raise UsageError(f"--k must be 1 or more, not {min(self.k)}.")
