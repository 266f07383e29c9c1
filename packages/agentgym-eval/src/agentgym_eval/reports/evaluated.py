"""A run with its report, and how reports refer to it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentgym_envs.util.installation import command

from agentgym_eval.metrics.comparison import Comparison
from agentgym_eval.metrics.seeds import AcrossSeeds
from agentgym_eval.metrics.summary import Report

SCHEMA = "agentgym.reports/1"
"""Schema of `report.json` for several runs."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One run: a policy in an environment."""

    policy: str
    world: str
    """Gymnasium id, or another unique name of the environment."""
    report: Report
    folder: Path | None = None
    """Folder of the run; None if that is the folder that the report is written to."""
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Additional information as JSON values: settings, versions, task set, usage, a sentence on the protocol, and one
    if the run is incomplete."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report and the additional information as JSON values."""
        return self.report.to_dict() | dict(self.about)


def labels(runs: Sequence[Evaluated]) -> list[str]:
    """Return a unique name for each run, as short as possible: the policy, then with the environment, the folder, or a
    number.
    """
    policies = [run.policy for run in runs]
    worlds = [f"{run.policy} in {run.world}" for run in runs]
    folders = [f"{name} ({run.folder})" if run.folder else name for name, run in zip(worlds, runs, strict=True)]
    numbered = [f"{name}, run {number}" for number, name in enumerate(worlds, 1)]
    several = len({run.world for run in runs}) > 1
    for names in (policies, worlds, folders):
        if len(set(names)) == len(runs) and not (several and names is policies):
            return names
    return numbered


def view_commands(folder: Path, runs: Sequence[Evaluated]) -> list[str]:
    """Return the `view` commands for the episodes: for the report's folder, or for the folders of runs outside of
    it.
    """
    outside = [run.folder for run in runs if run.folder and not run.folder.is_relative_to(folder)]
    folders = dict.fromkeys(path.parent if path.is_file() else path for path in outside or [folder])
    return [f"{command('view')} {shlex.quote(str(path))}" for path in folders]


def as_json(
    runs: Sequence[Evaluated], comparisons: Sequence[Comparison], across: AcrossSeeds | None = None
) -> dict[str, Any]:
    """Return the content of `report.json`: the report of a single run, or the reports of several and their
    comparisons.
    """
    if len(runs) == 1 and not comparisons:
        return runs[0].to_dict()
    named = [
        {"policy": run.policy, "world": run.world} | ({"folder": str(run.folder)} if run.folder else {}) | run.to_dict()
        for run in runs
    ]
    found = {"schema": SCHEMA, "runs": named, "comparisons": [comparison.to_dict() for comparison in comparisons]}
    return found | ({"across_seeds": across.to_dict()} if across else {})
