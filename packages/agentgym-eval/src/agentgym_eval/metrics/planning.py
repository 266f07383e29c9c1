"""Power analysis: the number of tasks and samples needed to tell two policies apart."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean

from agentgym_eval.metrics.intervals import FEWEST_DIFFERING, NEEDED, Z, icc


@dataclass(frozen=True, slots=True)
class Plan:
    """Assumptions about a comparison of two policies on the same tasks.

    A task's gain is the difference of two means over its samples. Its variance consists of the sampling variance of
    these means and of the variance of expected gains between tasks. The second policy's success is `success` plus or
    minus the difference, whichever requires more tasks.
    """

    success: float = 0.5
    """Success rate of attempts; 0.5 requires the most tasks."""
    between: float = 0.5
    """Fraction of the variance of an attempt's success that is between tasks: 0 if all tasks are equally hard, 1 if
    each is solved always or never."""
    shared: float = 0.5
    """Correlation of the two policies' success rates over tasks."""
    icc: float | None = None
    """Intra-class correlation of gains within clusters of tasks; None if unknown, which counts as 0."""

    @classmethod
    def measured(cls, attempts: Sequence[Sequence[bool]], clusters: Sequence[Hashable]) -> Plan:
        """Estimate the plan from one policy's attempts at each of several tasks with these clusters, for a comparison
        with a similarly good policy. `between` is assumed if no task has two attempts; `icc` is None if the tasks are
        too few to estimate it (`intervals.icc`), or all have the same success rate.
        """
        rates = [fmean(tried) for tried in attempts]
        success, several = fmean(rates), [tried for tried in attempts if len(tried) > 1]
        within = fmean(fmean(t) * (1 - fmean(t)) * len(t) / (len(t) - 1) for t in several) if several else math.nan
        whole = success * (1 - success)
        between = min(max(1 - within / whole, 0.0), 1.0) if whole and several else cls().between
        alike = icc(rates, clusters)
        return cls(success, between, icc=None if math.isnan(alike) else max(alike, 0.0))

    def tasks(self, difference: float, samples: int, *, clusters: int = 0) -> float:
        """Return the number of tasks that detects a difference in success with p < 0.05 at a power of 0.8; infinite if
        no number does.

        Args:
            difference: Difference in success, above 0.
            samples: Number of attempts at each task by each policy.
            clusters: Number of clusters that all available tasks fall into; 0 if each task is its own.
        """
        gain = max(self._variance(self.success + change, samples) for change in (difference, -difference))
        # The second term makes up for the variance's being estimated (Guenther 1981).
        alone = max((NEEDED / difference) ** 2 * gain + Z**2 / 2, FEWEST_DIFFERING)
        if not clusters or not self.icc or alone <= clusters:
            return alone  # with fewer tasks than clusters, each task can come from a different one
        # n tasks are worth n / (1 + (n / clusters - 1) icc) independent ones (Kish 1965).
        rest = 1 - alone * self.icc / clusters
        return alone * (1 - self.icc) / rest if rest > 0 else math.inf

    def _variance(self, second: float, samples: int) -> float:
        """Return the variance of a task's gain, if the second policy has this success."""
        rates = self.success, min(max(second, 0.0), 1.0)
        one, other = (rate * (1 - rate) for rate in rates)
        return (one + other) * (1 - self.between) / samples + self.between * (
            one + other - 2 * self.shared * math.sqrt(one * other)
        )
