"""How many tasks and samples it takes to tell two policies apart. Knows numbers only."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean

from agentgym_eval.metrics.intervals import NEEDED, icc


@dataclass(frozen=True, slots=True)
class Plan:
    """What a comparison of two policies on the same tasks is expected to look like.

    A task's gain is the difference of two means over its samples. Its variance is what chance leaves of the samples,
    and what sets one task's gain apart from another's.
    """

    success: float = 0.5
    """Share of attempts that succeed; at 0.5 it takes most tasks."""
    between: float = 0.5
    """What part of the variance of an attempt's success lies between tasks: 0 where all are equally hard, 1 where each
    is always solved or never."""
    shared: float = 0.5
    """How alike both policies find tasks hard: the correlation of their rates of success over tasks."""
    icc: float = 0.0
    """Intra-class correlation of gains in clusters of tasks."""

    @classmethod
    def measured(cls, attempts: Sequence[Sequence[bool]], clusters: Sequence[Hashable]) -> Plan:
        """What one policy's attempts at each of several tasks, of these clusters, let expect of another that is about
        as good. What they can't tell is assumed: the part between tasks where no task has two attempts.
        """
        rates = [fmean(tried) for tried in attempts]
        success, several = fmean(rates), [tried for tried in attempts if len(tried) > 1]
        within = fmean(fmean(t) * (1 - fmean(t)) * len(t) / (len(t) - 1) for t in several) if several else math.nan
        whole = success * (1 - success)
        between = min(max(1 - within / whole, 0.0), 1.0) if whole and several else cls().between
        alike = icc(rates, clusters)
        return cls(success, between, icc=0.0 if math.isnan(alike) else max(alike, 0.0))

    def tasks(self, difference: float, samples: int, *, clusters: int = 0) -> float:
        """Tasks that show a difference in success with p < 0.05 in four of five comparisons; infinite where no number
        of tasks does.

        Args:
            difference: In success, above 0.
            samples: Attempts at each task by each policy.
            clusters: How many clusters all the tasks there are fall into; 0 where each is its own.
        """
        attempt = 2 * self.success * (1 - self.success)
        gain = attempt * ((1 - self.between) / samples + self.between * (1 - self.shared))
        alone = (NEEDED / difference) ** 2 * gain
        if not clusters or not self.icc or alone <= clusters:
            return alone  # from fewer tasks than clusters, each can be of another one
        # n tasks are worth n / (1 + (n / clusters - 1) icc) independent ones (Kish 1965).
        rest = 1 - alone * self.icc / clusters
        return alone * (1 - self.icc) / rest if rest > 0 else math.inf
