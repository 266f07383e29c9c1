"""Warnings about how a run learns: pure functions of the lines of its metrics.

What a line warns of follows from it and the lines before it alone, so a resumed run warns as one that wasn't stopped.
Every figure may be missing, null or not finite in any line: it then says nothing.
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
"""Success from which on a policy need not explore."""
_LEAST_ENTROPY, _LEAST_GAP, _LEAST_INFORMATION = 0.1, 0.005, 0.1
"""In nats: a rise of entropy or gap by less a token, and a fall of mutual information from less, don't matter."""
_STANDARD_ERRORS = 4.0
"""By how many the means of two windows have to differ to be told from noise."""


@dataclass(frozen=True, slots=True)
class Signals:
    """What of a line the warnings are about; None where the line doesn't say."""

    step: int
    groups: float | None
    flat: bool
    """Whether all groups are flat and nothing was trained for it."""
    success: float | None
    score: float | None
    advantage: float | None
    """Mean over completion tokens in the loss, in standard deviations of advantages."""
    entropy: float | None
    length: float | None
    """Share of the episodes that ended at the token budget."""
    gap: float | None
    return_std: float | None
    """Of the returns within a group."""
    information: float | None
    """Mutual information of task and reply, in nats."""

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Signals:
        """Those of a line, which has its `step`."""
        groups, flat = _figure(line, "groups", "all"), _figure(line, "groups", "zero_variance")
        advantage, spread = _figure(line, "advantage/mean_token"), _figure(line, "advantage_std")
        episodes, cut = _figure(line, "episodes"), _figure(line, "stops", "length")
        tried = _figure(line, "grad_norm") is not None or bool(_figure(line, "skipped"))
        return cls(
            step=line["step"],
            groups=groups,
            flat=bool(flat) and flat == groups and not tried,
            success=_figure(line, "success"),
            score=_figure(line, "score"),
            advantage=advantage / spread if advantage is not None and spread else None,
            entropy=_figure(line, "entropy"),
            length=(cut or 0.0) / episodes if episodes and "stops" in line else None,
            gap=_figure(line, "logprob_check_gap"),
            return_std=_figure(line, "group_return_std"),
            information=_figure(line, "mutual_information"),
        )


@dataclass(frozen=True, slots=True)
class RunWarning:
    """Something that began at a step."""

    id: str
    """What kind it is: the same in all runs."""
    sentence: str
    """What was seen, what that usually means and what to try."""


class Monitor:
    """Watches a run line by line."""

    def __init__(self, settings: Warnings) -> None:
        self._settings = settings
        self._history: list[Signals] = []

    def resume(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Go on from these lines, of all steps so far."""
        self._history = [Signals.of(line) for line in lines]

    def observe(self, line: Mapping[str, Any]) -> list[RunWarning]:
        """What the line of the next step warns of."""
        self._history.append(Signals.of(line))
        return begun(self._history, self._settings)


def begun(history: Sequence[Signals], settings: Warnings) -> list[RunWarning]:
    """The warnings that begin at the last step of a history.

    Args:
        history: Of all steps so far, in order.
        settings: When to warn.
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
        f"Nothing was learned in {steps}: within each of the {now.groups:.0f} groups nothing tells the episodes apart "
        f"(mean score {score}), so that every advantage is 0; if this goes on, {_remedy(now.score)}."
    )


def _negative_advantage(history: Sequence[Signals], settings: Warnings) -> str | None:
    last = _last(history, "advantage", settings)
    if not settings.advantage or last is None or last.max() >= 0 or -last.mean() < settings.advantage:
        return None
    return (
        f"The mean advantage of a completion token was below 0 in each of the last {settings.window} updates, by "
        f"{-last.mean():.2g} standard deviations on average, so they made what was sampled less likely on the whole, "
        "as means over tokens do where failed episodes are longer than successful ones; try "
        "--algorithm.aggregation.kind sequence, or, with grpo and those like it, --algorithm.advantages.baseline "
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
        f"Entropy fell from {first.mean():.2g} to {last.mean():.2g} nats a token between the first {settings.window} "
        f"updates and the last, with success at {_share(success)}: the policy hardly explores any more, and learns "
        "nothing of what it doesn't sample; try a lower --optimizer.lr, a higher --algorithm.clip.high, a bonus such "
        "as --algorithm.entropy 0.001, or --algorithm.kl.where loss with a larger --algorithm.kl.weight."
    )


def _entropy_explosion(history: Sequence[Signals], settings: Warnings) -> str | None:
    last, first = _last(history, "entropy", settings), _first(history, "entropy", settings)
    if not settings.entropy_high or last is None or first is None or not _differ(last, first):
        return None
    if last.mean() < max(settings.entropy_high * first.mean(), first.mean() + _LEAST_ENTROPY):
        return None
    return (
        f"Entropy rose from {first.mean():.2g} to {last.mean():.2g} nats a token between the first {settings.window} "
        "updates and the last: replies turn into noise, as after updates that are too large or that make most of what "
        "is sampled less likely; try a lower --optimizer.lr, --algorithm.kl.where loss with a larger "
        "--algorithm.kl.weight, no bonus (--algorithm.entropy 0), or what negative-advantage names."
    )


def _length_stops(history: Sequence[Signals], settings: Warnings) -> str | None:
    last, lowest = _last(history, "length", settings), _extreme(history, "length", settings, np.argmin)
    if not settings.length or last is None or lowest is None or not _differ(last, lowest):
        return None
    if last.mean() - lowest.mean() < settings.length:
        return None
    return (
        f"Of the last {settings.window} steps' episodes, {last.mean():.0%} ended at the token budget (`length`), after "
        f"{lowest.mean():.0%} before: replies run on without an end, or contexts no longer fit; read some of them, and "
        "raise --generation.max-tokens or --generation.max-context where they make sense, or else try a lower "
        "--optimizer.lr or a larger --algorithm.kl.weight."
    )


def _engine_gap(history: Sequence[Signals], settings: Warnings) -> str | None:
    last, lowest = _last(history, "gap", settings), _extreme(history, "gap", settings, np.argmin)
    if not settings.gap or last is None or lowest is None or not _differ(last, lowest):
        return None
    if last.mean() < max(settings.gap * lowest.mean(), lowest.mean() + _LEAST_GAP):
        return None
    return (
        f"The engine's log-probabilities were {last.mean():.2g} nats a token from the learner's in the last "
        f"{settings.window} steps, after {lowest.mean():.2g} before: what is sampled drifts away from what is trained, "
        "as where the engine computes in a lower precision; try --algorithm.correction.level token or a lower "
        "--optimizer.lr, for beyond --engine.tolerance the run ends."
    )


def _low_return_variance(history: Sequence[Signals], settings: Warnings) -> str | None:
    last, score = _last(history, "return_std", settings), _last(history, "score", settings)
    if last is None or last.mean() >= settings.return_std:
        return None
    if all(signals.flat for signals in history[-settings.window :]):  # which is told of already
        return None
    return (
        f"In the last {settings.window} steps the returns of a group had a standard deviation of {last.mean():.2g} on "
        f"average (mean score {_share(score)}), so that rewards hardly say which episode was better, and noise and "
        f"regularization take over; {_remedy(None if score is None else float(score.mean()))}."
    )


def _template_collapse(history: Sequence[Signals], settings: Warnings) -> str | None:
    last, best = _last(history, "information", settings), _extreme(history, "information", settings, np.argmax)
    if not settings.template or last is None or best is None or not _differ(last, best):
        return None
    if best.mean() < _LEAST_INFORMATION or last.mean() >= settings.template * best.mean():
        return None
    return (
        f"First replies tell {last.mean():.2g} nats about which task they are for (mutual_information, the last "
        f"{settings.window} measurements), after {best.mean():.2g} before: they become a template that hardly depends "
        "on the task, as happens where returns within groups differ little (group_return_std) and regularization takes "
        "over; try --sampler mid-success, --algorithm.groups.zero-variance resample, or a smaller --algorithm.kl.weight and "
        "--algorithm.entropy."
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


def _figure(line: Mapping[str, Any], *names: str) -> float | None:
    """The finite number under a name, or a name in a name."""
    value: Any = line
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if number else None


def _known(history: Sequence[Signals], name: str) -> NDArray[np.float64]:
    return np.array([value for signals in history if (value := getattr(signals, name)) is not None], float)


def _last(history: Sequence[Signals], name: str, settings: Warnings) -> NDArray[np.float64] | None:
    """The last window of a figure; None before it is full."""
    values = _known(history, name)[-settings.window :]
    return values if len(values) == settings.window else None


def _first(history: Sequence[Signals], name: str, settings: Warnings) -> NDArray[np.float64] | None:
    """The first window; None before the last one is apart from it."""
    values = _known(history, name)
    return values[: settings.window] if len(values) >= 2 * settings.window else None


def _extreme(
    history: Sequence[Signals], name: str, settings: Warnings, which: Callable[[NDArray[np.float64]], np.intp]
) -> NDArray[np.float64] | None:
    """The window with the lowest or highest mean of those before the last one; None where there is none."""
    before = _known(history, name)[: -settings.window]
    if len(before) < settings.window:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(before, settings.window)
    return windows[which(windows.mean(1))]


def _differ(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    """Whether the means of two windows are further apart than noise of this size lets them be."""
    error = math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / len(a))
    return abs(float(a.mean() - b.mean())) > _STANDARD_ERRORS * error


def _share(values: NDArray[np.float64] | None) -> str:
    return "an unknown level" if values is None else f"{values.mean():.2f}"


def _remedy(score: float | None) -> str:
    """What to do where the episodes of a task hardly differ."""
    resample = "or try --sampler mid-success or --algorithm.groups.zero-variance resample"
    if score is not None and score >= 0.5:
        return f"the tasks are too easy for the model: take harder ones, {resample}"
    return (
        "the tasks are too hard for the model: take easier ones, a larger --group-size, a longer --horizon or a warm "
        f"start (--warm-start.episodes), {resample}"
    )
