"""Evaluation without torch: policies, resumable runs, pass@k with confidence intervals, and reports.

`from agentgym_eval import evaluate, collect, compare, load_run` is the Python interface (docs/python.md). Importing
this package loads nothing; the subpackages are:

- `api`: the Python interface.
- `runs`: settings of runs, resumable runs, and comparisons of finished runs.
- `storage`: run folders on disk, with episodes, recorded replies and provenance.
- `data`: episodes as data, and conversion from and to the formats of other libraries.
- `policies`: oracle, random and scripted policies, models behind endpoints, and policies of other packages.
- `metrics`: metrics of episodes (pass@k, confidence intervals, token usage), and comparisons on the same tasks.
- `reports`: reports of runs as files. `viewer`: runs and episodes in a browser.
- `cli`: the commands. `util`: errors, progress display, signals, tool-call messages.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentgym_eval.api import (
        AnyPolicy,
        Collected,
        ComparisonReport,
        EnvFactory,
        PlayOptions,
        Report,
        TrainingEvaluation,
        TrainingRun,
        collect,
        compare,
        evaluate,
        load_run,
    )
    from agentgym_eval.policies.policies import Oracle, Random, Scripted, find_policy
    from agentgym_eval.util.errors import BudgetSpent, RunStopped, UsageError

_MODULES = {
    "agentgym_eval.api": "AnyPolicy Collected ComparisonReport EnvFactory PlayOptions Report TrainingEvaluation "
    "TrainingRun collect compare evaluate load_run",
    "agentgym_eval.policies.policies": "Oracle Random Scripted find_policy",
    "agentgym_eval.util.errors": "BudgetSpent RunStopped UsageError",
}
"""The modules of the names below, which are imported on first use, so that a command's `--help` loads only settings."""
_LAZY = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "AnyPolicy",
    "BudgetSpent",
    "Collected",
    "ComparisonReport",
    "EnvFactory",
    "Oracle",
    "PlayOptions",
    "Random",
    "Report",
    "RunStopped",
    "Scripted",
    "TrainingEvaluation",
    "TrainingRun",
    "UsageError",
    "collect",
    "compare",
    "evaluate",
    "find_policy",
    "load_run",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
