"""Reports of runs as files: an HTML page, a Markdown text, JSON, and two plots.

`write_reports` makes them from the results of `report` and `compare`; this package computes no metrics.
"""

from __future__ import annotations

from agentgym_eval.reports.evaluated import Evaluated
from agentgym_eval.reports.files import write_reports

__all__ = ["Evaluated", "write_reports"]
