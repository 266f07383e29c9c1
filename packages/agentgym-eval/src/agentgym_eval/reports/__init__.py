"""What runs come to as files that can be passed on: a page, a text, figures for programs, and the two curves.

`write_reports` makes them from what `report` and `compare` have found out; nothing here plays, counts or draws numbers.
"""

from __future__ import annotations

from agentgym_eval.reports.evaluated import Evaluated
from agentgym_eval.reports.files import write_reports

__all__ = ["Evaluated", "write_reports"]
