"""Statistics of the study, as docs/results/horizon-plan.md registers them. The unit is the seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from agentgym_eval.metrics.comparison import Difference, holm
from agentgym_eval.metrics.intervals import Interval, bootstrap
from agentgym_eval.metrics.seeds import over_seeds

from horizon.design import LOOKS, PRIMARY

Record = Mapping[str, Any]
Outcome = Callable[[Record], float]
Unit = TypeVar("Unit", int, str)
MARGIN = 0.05
"""Largest difference in success that counts as none."""
LEVELS = (0.0052, 0.0480)
"""Levels of the two looks (O'Brien and Fleming 1979), together 0.05 two-sided."""
LOST, IN_A_ROW = 0.6, 3


# Outcomes of a run.


def final(record: Record) -> float:
    """Return success on test tasks after training, the mean over strata."""
    return float(np.mean(record["test"]))


def final_of(*strata: int) -> Outcome:
    """Return an outcome: success on test tasks of these strata, by index, after training."""
    return lambda record: float(np.mean([record["test"][stratum] for stratum in strata]))


def dev(record: Record) -> float:
    """Return success on dev tasks at the last evaluation."""
    return float(np.mean(record["curve"][-1]["success"]))


def collapsed_at(record: Record) -> int | None:
    """Return the number of updates at which a run had collapsed, or None.

    It has when success is lost, or when more than half of an update's episodes end at the token budget.
    """
    found = [at for at in (lost_at(record), record["length_update"]) if at is not None]
    return min(found, default=None)


def lost_at(record: Record) -> int | None:
    """Return the number of updates at which success was lost, or None: on dev tasks it is below 60% of its running
    maximum in three evaluations in a row.
    """
    highest, row = 0.0, 0
    for point in record["curve"]:
        now = float(np.mean(point["success"]))
        highest = max(highest, now)
        row = row + 1 if now < LOST * highest else 0
        if row == IN_A_ROW:
            return point["step"]
    return None


# Comparisons over seeds.


def by_seed(records: Iterable[Record], arm: str, outcome: Outcome) -> dict[int, float]:
    """Return an outcome of an arm's runs by seed."""
    return {record["seed"]: outcome(record) for record in records if record["arm"] == arm}


@dataclass(frozen=True, slots=True)
class Paired:
    """Differences between paired values, one pair per seed."""

    gains: tuple[float, ...]
    t: Difference
    """Student's interval and test."""
    bca: Interval
    """Bias-corrected and accelerated bootstrap over seeds (Efron 1987)."""


def paired(first: Mapping[Unit, float], second: Mapping[Unit, float]) -> Paired | None:
    """Compare the second with the first over the seeds, or other units, that have both; None without any."""
    units = sorted(first.keys() & second.keys())
    if not units:
        return None
    a, b = [first[unit] for unit in units], [second[unit] for unit in units]
    gains = tuple(y - x for x, y in zip(a, b, strict=True))
    return Paired(gains, over_seeds(a, b), bootstrap(gains, None, np.random.default_rng(0)))


def equivalence(gains: Sequence[float], margin: float = MARGIN) -> float:
    """Return the p-value of two one-sided t-tests (Schuirmann 1987) against differences of `margin` or more; NaN for
    fewer than two values.
    """
    if len(gains) < 2:
        return math.nan
    from scipy import stats

    mean, error = float(np.mean(gains)), float(np.std(gains, ddof=1)) / math.sqrt(len(gains))
    if not error:
        return float(abs(mean) >= margin)
    return float(stats.t.sf((margin - abs(mean)) / error, len(gains) - 1))


def mcnemar(first: Mapping[int, bool], second: Mapping[int, bool]) -> tuple[int, int, float]:
    """Return how many seeds have the event with the first only and with the second only, and McNemar's exact p."""
    from scipy import stats

    seeds = first.keys() & second.keys()
    only_first = sum(first[seed] and not second[seed] for seed in seeds)
    only_second = sum(second[seed] and not first[seed] for seed in seeds)
    discordant = only_first + only_second
    return only_first, only_second, float(stats.binomtest(only_first, discordant).pvalue) if discordant else 1.0


def kaplan_meier(times: Sequence[int | None], end: int) -> tuple[list[int], list[float]]:
    """Return the times of events and the share without an event after each (Kaplan and Meier 1958).

    Args:
        times: Time of each run's event; None for a run without one until `end`.
        end: When observation ends.
    """
    from scipy import stats

    data = stats.CensoredData.right_censored([end if at is None else at for at in times], [at is None for at in times])
    survival = stats.ecdf(data).sf
    return [int(at) for at in survival.quantiles], [float(share) for share in survival.probabilities]


# Hypotheses.


@dataclass(frozen=True, slots=True)
class Finding:
    """The primary outcome of a hypothesis."""

    name: str
    estimate: str
    p: float
    adjusted: float = math.nan
    """By Holm's method, over the hypotheses."""
    sign: int = 1
    """1 if the difference has the stated sign, -1 if it has the other; 0 if of two differences one has."""
    equivalent: float = math.nan
    """The p-value of TOST, for H3."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """All findings over the seeds of a look."""

    seeds: tuple[int, ...]
    """The complete seeds that the findings are over."""
    level: float | None
    """The level of the look; None before the first, when nothing is decided."""
    best_fixed: str
    findings: tuple[Finding, ...]
    earlier: Verdicts | None = None
    """Those of the look before: what it decided stands."""

    def decision(self, finding: Finding) -> str:
        """Return in words what the test says."""
        if self.level is None:
            return f"undecided: {len(self.seeds)} of {len(LOOKS[0])} seeds"
        if self.earlier is not None:
            first = next(each for each in self.earlier.findings if each.name == finding.name)
            if self.earlier.decides(first):
                return f"{self.earlier.decision(first)} (decided with {len(self.earlier.seeds)} seeds)"
        same = f"; equivalent within {MARGIN:g}" if finding.equivalent < self.level else ""
        if finding.adjusted < self.level:
            return _WORDS[finding.sign] + same
        return f"not supported{same}"

    def decides(self, finding: Finding) -> bool:
        """Whether a test is significant at the level of this look."""
        return self.level is not None and (finding.adjusted < self.level or finding.equivalent < self.level)


_WORDS = {
    1: "supported",
    0: "not supported: the differences have opposite signs",
    -1: "contradicted: the difference has the other sign",
}


def complete_seeds(records: Iterable[Record]) -> list[int]:
    """Return the seeds that have all arms of the primary block."""
    arms = dict[int, set[str]]()
    for record in records:
        if record["block"] == "primary":
            arms.setdefault(record["seed"], set()).add(record["arm"])
    return sorted(seed for seed, found in arms.items() if found >= set(PRIMARY))


def verdicts(records: Sequence[Record]) -> Verdicts | None:
    """Test the hypotheses over the seeds of the last complete look, or over all complete seeds before the first; None
    without any.
    """
    found = complete_seeds(records)
    looks = [tuple(LOOKS[0]), (*LOOKS[0], *LOOKS[1])]
    reached = [number for number, seeds in enumerate(looks) if set(seeds) <= set(found)]
    if not found:
        return None
    verdict = None if reached else _verdicts(records, tuple(found), None, None)
    for number in reached:
        verdict = _verdicts(records, looks[number], LEVELS[number], verdict)
    return verdict


def _verdicts(
    records: Sequence[Record], seeds: tuple[int, ...], level: float | None, earlier: Verdicts | None
) -> Verdicts:
    used = [record for record in records if record["block"] == "primary" and record["seed"] in seeds]
    best = max(("fixed 6", "fixed 12", "fixed 24"), key=lambda arm: np.mean([*by_seed(used, arm, dev).values()]))
    findings = [_plateau(used), _collapse(used), _benefit(used, best), _length_bias(used)]
    adjusted = holm({finding.name: finding.p for finding in findings})
    return Verdicts(
        seeds,
        level,
        best,
        tuple(
            Finding(each.name, each.estimate, each.p, adjusted[each.name], each.sign, each.equivalent)
            for each in findings
        ),
        earlier,
    )


def _plateau(records: Sequence[Record]) -> Finding:
    found = _compared(records, "fixed 6", "step", final_of(1, 2))
    estimate = f"step - fixed 6 on tasks of more than 6 turns: {difference_text(found)}"
    return Finding("H1, plateau", estimate, found.t.p, sign=_sign(found.t.difference.mean))


def _collapse(records: Sequence[Record]) -> Finding:
    events = [collapses(records, arm) for arm in ("fixed 24", "step")]
    only_fixed, only_step, p = mcnemar(*events)
    shares = [f"{sum(found.values())} of {len(found)}" for found in events]
    estimate = f"collapsed: {shares[0]} with fixed 24, {shares[1]} with step; {only_fixed} seeds with fixed 24 only, "
    return Finding("H2, collapse", f"{estimate}{only_step} with step only", p, sign=_sign(only_fixed - only_step))


def _benefit(records: Sequence[Record], best: str) -> Finding:
    found = _compared(records, best, "step", final)
    estimate, same = f"step - {best}, the best on dev tasks: {difference_text(found)}", equivalence(found.gains)
    return Finding(
        "H3, benefit",
        f"{estimate}; TOST p = {same:.3f}",
        found.t.p,
        sign=_sign(found.t.difference.mean),
        equivalent=same,
    )


def _length_bias(records: Sequence[Record]) -> Finding:
    long = _compared(records, "fixed 24", "fixed 24, length-weighted", final)
    short = _compared(records, "fixed 6", "fixed 6, length-weighted", final)
    more = paired(dict(enumerate(short.gains)), dict(enumerate(long.gains)))
    assert more is not None
    estimate = (
        f"length-weighted - plain at 24: {difference_text(long)}; that minus the same at 6: {difference_text(more)}"
    )
    signs = {_sign(long.t.difference.mean), _sign(more.t.difference.mean)}
    return Finding(
        "H5, length bias",
        estimate,
        float(np.max([long.t.p, more.t.p])),
        sign=signs.pop() if len(signs) == 1 else 0,
    )


def _sign(difference: float) -> int:
    return 1 if difference > 0 else -1


def collapses(records: Iterable[Record], arm: str) -> dict[int, bool]:
    """Return by seed whether the runs of an arm collapsed."""
    return {record["seed"]: collapsed_at(record) is not None for record in records if record["arm"] == arm}


def _compared(records: Sequence[Record], first: str, second: str, outcome: Outcome) -> Paired:
    found = paired(by_seed(records, first, outcome), by_seed(records, second, outcome))
    assert found is not None
    return found


def difference_text(found: Paired | None) -> str:
    """Return a difference with both intervals as text."""
    if found is None:
        return "–"
    t, bca = found.t.difference, found.bca
    if math.isnan(t.low):
        return f"{t.mean:+.3f}"
    return f"{t.mean:+.3f} ({t.low:+.3f} to {t.high:+.3f}; BCa {bca.low:+.3f} to {bca.high:+.3f})"
