"""The Python interface: evaluate, collect and compare as the commands do, with policies and environments as objects.

Everything public is also in `agentgym_eval`: `from agentgym_eval import evaluate`.
"""

from agentgym_eval.api.collecting import Collected, collect
from agentgym_eval.api.comparing import compare
from agentgym_eval.api.evaluating import evaluate
from agentgym_eval.api.loading import load_run
from agentgym_eval.api.options import AnyPolicy, EnvFactory, PlayOptions
from agentgym_eval.api.report import ComparisonReport, Report
from agentgym_eval.api.training_run import TrainingEvaluation, TrainingRun

__all__ = [
    "AnyPolicy",
    "Collected",
    "ComparisonReport",
    "EnvFactory",
    "PlayOptions",
    "Report",
    "TrainingEvaluation",
    "TrainingRun",
    "collect",
    "compare",
    "evaluate",
    "load_run",
]
