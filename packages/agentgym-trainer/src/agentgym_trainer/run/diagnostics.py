"""Warnings about unhealthy training: pure functions of the lines of a run's metrics.

The warnings of a line depend only on it and the lines before it, so that a resumed run gives the same warnings as an
uninterrupted one. Any metric may be missing, null or not finite in any line, which is then ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentgym_trainer.config import Warnings

_SOLVED = 0.95
"""Success rate from which on a policy no longer needs to explore."""
_LEAST_ENTROPY, _LEAST_GAP, _LEAST_INFORMATION = 0.1, 0.005, 0.1
"""In nats: smaller rises of entropy or gap per token, and falls of mutual information from less, don't matter."""
_STANDARD_ERRORS = 4.0
"""The means of two windows differ significantly if they are more than this many standard errors apart."""


@dataclass(frozen=True, slots=True)
class Signals:
    """The metrics of a line that the warnings depend on; None where the line lacks them."""

    step: int
    groups: float | None
    flat: bool
    """Whether all groups have zero variance, so that nothing was trained on."""
    success: float | None
    score: float | None
    advantage: float | None
    """Mean over the completion tokens in the loss, in standard deviations of the advantages."""
    entropy: float | None
    length: float | None
    """Share of the episodes that ended at the token budget."""
    gap: float | None
    """Mean absolute difference of the log-probabilities of engine and learner, in nats per token."""
    return_std: float | None
    """Standard deviation of the returns within a group; None where more than returns trains."""
    information: float | None
    """Mutual information of task and reply, in nats."""

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Signals:
        """Extract the signals of a line, which must have a `step`."""
        groups, flat = _number(line, "groups", "all"), _number(line, "groups", "zero_variance")
        advantage, spread = _number(line, "advantage/mean_token"), _number(line, "advantage_std")
        episodes, cut = _number(line, "episodes"), _number(line, "stops", "length")
        teacher, labels = _number(line, "teacher/weight"), _number(line, "label/weight")
        tried = _number(line, "grad_norm") is not None or bool(_number(line, "skipped"))
        return cls(
            step=line["step"],
            groups=groups,
            flat=bool(flat) and flat == groups and not tried,
            success=_number(line, "success"),
            score=_number(line, "score"),
            # With a teacher, the log-ratio to it is part of the advantage, and below 0 on average.
            advantage=advantage / spread if advantage is not None and spread and not teacher else None,
            entropy=_number(line, "entropy"),
            length=(cut or 0.0) / episodes if episodes and "stops" in line else None,
            gap=_number(line, "logprob_check_gap"),
            return_std=None if teacher or labels else _number(line, "group_return_std"),
            information=_number(line, "mutual_information"),
        )


@dataclass(frozen=True, slots=True)
class RunWarning:
    """A warning that starts at a step."""

    id: str
    """The kind of warning; a stable identifier."""
    sentence: str
    """What was observed, what it usually means, and what to try."""


class Monitor:
    """Checks the metrics of a run line by line."""

    def __init__(self, settings: Warnings) -> None:
        self._settings = settings
        self._history: list[Signals] = []

    def resume(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Restore the history from the lines of all steps so far."""
        self._history = [Signals.of(line) for line in lines]

    def observe(self, line: Mapping[str, Any]) -> list[RunWarning]:
        """Add the line of the next step and return the warnings that start there."""
        self._history.append(Signals.of(line))
        return begun(self._history, self._settings)


def begun(history: Sequence[Signals], settings: Warnings) -> list[RunWarning]:
    """Return the warnings that start at the last step of a history.

    Args:
        history: The signals of all steps so far, in order.
        settings: The thresholds.
    """
    found = ((name, check(history, settings)) for name, check in _CHECKS.items())
    earlier = [history[: len(history) - back] for back in range(1, min(settings.window, len(history)) + 1)]
    return [
        RunWarning(name, sentence)
        for name, sentence in found
        if sentence and not any(_CHECKS[name](before, settings) for before in earlier)
    ]


def _flat_groups(history: Sequence[Signals], settings: Warnings) -> str | None:
    last = history[-settings.flat :] if settings.flat else []
    if not last or len(last) < settings.flat or not all(signals.flat for signals in last):
        return None
    now = last[-1]
    steps = f"step {now.step}" if settings.flat == 1 else f"the last {settings.flat} steps"
    score = "unknown" if now.score is None else f"{now.score:.2f}"
    return (
        f"Nothing was learned in {steps}: within each of the {now.groups:.0f} groups, nothing distinguishes the "
        f"episodes (mean score {score}), so every advantage is 0. If this persists, {_remedy(now.score)}."
    )


def _negative_advantage(history: Sequence[Signals], settings: Warnings) -> str | None:
    last = _last(history, "advantage", settings)
    if not settings.advantage or last is None or last.max() >= 0 or -last.mean() < settings.advantage:
        return None
    return (
        f"The mean advantage of completion tokens was below 0 in each of the last {settings.window} updates, by "
        f"{-last.mean():.2g} standard deviations on average, so on the whole these updates made the sampled tokens "
        "less likely. This happens with token means when failed episodes are longer than successful ones. Try "
        "--algorithm.aggregation.kind sequence, or, with grpo and its variants, --algorithm.advantages.baseline "
        "length or --algorithm.advantages.whiten."
    )


def _entropy_collapse(history: Sequence[Signals], settings: Warnings) -> str | None:
    last, first = _last(history, "entropy", settings), _first(history, "entropy", settings)
    success = _last(history, "success", settings)
    if last is None or first is None or last.mean() >= settings.entropy_low * first.mean() or not _differ(last, first):
        return None
    if success is not None and success.mean() >= _SOLVED:
        return None
    return (
        f"Entropy fell from {first.mean():.2g} to {last.mean():.2g} nats per token between the first and the last "
        f"{settings.window} updates, with success at {_share(success)}: the policy hardly explores any more, and can't "
        "learn from actions that it doesn't sample. Try a lower --optimizer.lr, a higher --algorithm.clip.high, an "
        "entropy bonus such as --algorithm.entropy 0.001, or --algorithm.kl.where loss with a larger "
        "--algorithm.kl.weight."
    )


def _entropy_explosion(history: Sequence[Signals], settings: Warnings) -> str | None:
    last, first = _last(history, "entropy", settings), _first(history, "entropy", settings)
    if not settings.entropy_high or last is None or first is None or not _differ(last, first):
        return None
    if last.mean() < max(settings.entropy_high * first.mean(), first.mean() + _LEAST_ENTROPY):
        return None
    return (
        f"Entropy rose from {first.mean():.2g} to {last.mean():.2g} nats per token between the first and the last "
        f"{settings.window} updates: replies turn into noise, for example because updates are too large or make most "
        "sampled tokens less likely. Try a lower --optimizer.lr, --algorithm.kl.where loss with a larger "
        "--algorithm.kl.weight, no entropy bonus (--algorithm.entropy 0), or the remedies of negative-advantage."
    )


def _length_stops(history: Sequence[Signals], settings: Warnings) -> str | None:
    last, lowest = _last(history, "length", settings), _extreme(history, "length", settings, np.argmin)
    if not settings.length or last is None or lowest is None or not _differ(last, lowest):
        return None
    if last.mean() - lowest.mean() < settings.length:
        return None
    return (
        f"In the last {settings.window} steps, {last.mean():.0%} of the episodes ended at the token budget (`length`), "
        f"up from {lowest.mean():.0%}: replies don't end, or contexts no longer fit. Read some of them. If they make "
        "sense, raise --generation.max-tokens or --generation.max-context; otherwise try a lower --optimizer.lr, or "
        "--algorithm.kl.where loss with a larger --algorithm.kl.weight."
    )


def _engine_gap(history: Sequence[Signals], settings: Warnings) -> str | None:
    last, lowest = _last(history, "gap", settings), _extreme(history, "gap", settings, np.argmin)
    if not settings.gap or last is None or lowest is None or not _differ(last, lowest):
        return None
    if last.mean() < max(settings.gap * lowest.mean(), lowest.mean() + _LEAST_GAP):
        return None
    return (
        f"In the last {settings.window} steps, the log-probabilities of engine and learner differed by "
        f"{last.mean():.2g} nats per token, up from {lowest.mean():.2g}: the sampled policy drifts away from the "
        "trained one, for example because the engine computes in a lower precision. Try --algorithm.correction.level "
        "token or a lower --optimizer.lr; the run ends when the difference exceeds --engine.tolerance."
    )


def _low_return_variance(history: Sequence[Signals], settings: Warnings) -> str | None:
    last, score = _last(history, "return_std", settings), _last(history, "score", settings)
    if last is None or last.mean() >= settings.return_std:
        return None
    if all(signals.flat for signals in history[-settings.window :]):  # flat-groups warns of this
        return None
    return (
        f"In the last {settings.window} steps, the standard deviation of returns within a group was {last.mean():.2g} "
        f"on average (mean score {_share(score)}): rewards hardly distinguish better from worse episodes, and noise "
        f"and regularization dominate. Probably {_remedy(None if score is None else float(score.mean()))}."
    )


def _template_collapse(history: Sequence[Signals], settings: Warnings) -> str | None:
    last, best = _last(history, "information", settings), _extreme(history, "information", settings, np.argmax)
    if not settings.template or last is None or best is None or not _differ(last, best):
        return None
    if best.mean() < _LEAST_INFORMATION or last.mean() >= settings.template * best.mean():
        return None
    return (
        f"The mutual information of tasks and first replies (mutual_information) was {last.mean():.2g} nats in the "
        f"last {settings.window} measurements, down from {best.mean():.2g}: replies become a template that hardly "
        "depends on the task. This happens when returns within groups differ little (group_return_std) and "
        "regularization dominates. Try --sampler mid-success, --algorithm.groups.zero-variance resample, or a smaller "
        "--algorithm.kl.weight and --algorithm.entropy."
    )


_CHECKS: dict[str, Callable[[Sequence[Signals], Warnings], str | None]] = {
    "flat-groups": _flat_groups,
    "negative-advantage": _negative_advantage,
    "entropy-collapse": _entropy_collapse,
    "entropy-explosion": _entropy_explosion,
    "length-stops": _length_stops,
    "engine-gap": _engine_gap,
    "low-return-variance": _low_return_variance,
    "template-collapse": _template_collapse,
}
WARNINGS = tuple(_CHECKS)
"""The ids of all warnings."""


def _number(line: Mapping[str, Any], *names: str) -> float | None:
    """Return the finite number under these nested names, or None."""
    value: Any = line
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if number else None


def _known(history: Sequence[Signals], name: str) -> NDArray[np.float64]:
    return np.array([value for signals in history if (value := getattr(signals, name)) is not None], float)


def _last(history: Sequence[Signals], name: str, settings: Warnings) -> NDArray[np.float64] | None:
    """Return the last window of a signal; None before it is full."""
    values = _known(history, name)[-settings.window :]
    return values if len(values) == settings.window else None


def _first(history: Sequence[Signals], name: str, settings: Warnings) -> NDArray[np.float64] | None:
    """Return the first window of a signal; None while it overlaps the last one."""
    values = _known(history, name)
    return values[: settings.window] if len(values) >= 2 * settings.window else None


def _extreme(
    history: Sequence[Signals], name: str, settings: Warnings, which: Callable[[NDArray[np.float64]], np.intp]
) -> NDArray[np.float64] | None:
    """Return the window with the lowest or highest mean among those before the last one; None if there is none."""
    before = _known(history, name)[: -settings.window]
    if len(before) < settings.window:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(before, settings.window)
    return windows[which(windows.mean(1))]


def _differ(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    """Whether the means of two windows differ significantly."""
    error = math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / len(a))
    return abs(float(a.mean() - b.mean())) > _STANDARD_ERRORS * error


def _share(values: NDArray[np.float64] | None) -> str:
    return "an unknown level" if values is None else f"{values.mean():.2f}"


def _remedy(score: float | None) -> str:
    """Return cause and remedy when the episodes of a task hardly differ."""
    resample = "or try --sampler mid-success or --algorithm.groups.zero-variance resample"
    if score is not None and score >= 0.5:
        return f"the tasks are too easy for the model: use harder ones, {resample}"
    return (
        "the tasks are too hard for the model: use easier ones, a larger --group-size, a longer --horizon or a warm "
        f"start (--warm-start.episodes), {resample}"
    )
