"""Metrics of single episodes for `forensics.py`: repetition, rejected actions, nearness to the goal, directness."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agentgym_envs import Episode
from agentgym_eval.metrics.failure_causes import Distances, unproductive


@dataclass(frozen=True, slots=True)
class Played:
    """An episode with its distances and the policy's actions."""

    episode: Episode
    distances: Distances

    @property
    def acts(self) -> list[int]:
        """Indices of the turns with the policy's actions."""
        return [at for at, turn in enumerate(self.episode.turns) if turn.kind == "act" and not turn.reply.expert]

    @property
    def measured(self) -> bool:
        """Whether every distance is known."""
        return len(self.distances) == len(self.episode.turns) + 1

    def count(self, *kinds: str) -> int:
        """Return the number of turns that made no progress in one of these ways."""
        return sum(mark in kinds for mark in unproductive(self.episode, self.acts))


Metric = Callable[[Played], float | None]


def _turns(played: Played) -> float:
    return len(played.acts)


def _invalid(played: Played) -> float:
    return played.count("invalid_actions", "format")


def _repeated(played: Played) -> float:
    return played.count("loop")


def _same_invalid(played: Played) -> float | None:
    """Share of the invalid actions that repeat an earlier one."""
    rejected = [turn.action or turn.reply.text for turn in played.episode.turns if not turn.valid]
    return 1 - len(set(rejected)) / len(rejected) if rejected else None


def _distinct(played: Played) -> float | None:
    """Share of the actions that are new in the episode."""
    actions = [played.episode.turns[at].action or played.episode.turns[at].reply.text for at in played.acts]
    return len(set(actions)) / len(actions) if actions else None


def _nearest(played: Played) -> int | None:
    """Return the first turn at which an unsuccessful episode was nearest to its goal."""
    known = [(d, at) for at, d in enumerate(played.distances) if d is not None]
    return min(known)[1] if known and played.measured and not played.episode.success else None


def _turns_after(played: Played) -> float | None:
    nearest = _nearest(played)
    return None if nearest is None else sum(at >= nearest for at in played.acts)


def _left(played: Played) -> float | None:
    """Whether an episode failed although the goal was one action away with more than one turn left."""
    if not played.measured:
        return None
    acts = played.acts
    near = [at for number, at in enumerate(acts) if played.distances[at] == 1 and len(acts) - number > 1]
    return float(bool(near) and not played.episode.success)


def _way(played: Played) -> float | None:
    """Share of the way to the goal that an unsuccessful episode went, at its best moment."""
    nearest, start = _nearest(played), played.distances[0] if played.distances else None
    best = None if nearest is None else played.distances[nearest]
    return None if best is None or not start else max(0.0, 1 - best / start)


def _excess(played: Played) -> float | None:
    """Number of turns of a success beyond the expert's."""
    start = played.distances[0] if played.distances else None
    return len(played.acts) - start if played.episode.success and start is not None else None


def _direct(played: Played) -> float | None:
    """Whether a success took at most one turn more than the expert takes."""
    excess = _excess(played)
    return None if excess is None else float(excess <= 1)


METRICS: dict[str, Metric] = {
    "turns": _turns,
    "invalid actions": _invalid,
    "of them said before": _same_invalid,
    "repeated valid actions": _repeated,
    "share of distinct actions": _distinct,
    "left one action before the goal": _left,
    "failures: turns after the nearest moment": _turns_after,
    "failures: share of the way gone": _way,
    "successes: turns beyond the expert's": _excess,
    "successes: at most one turn more than the expert": _direct,
}
"""Means over tasks of the means over attempts, where None is no value."""
BOUNDED = {
    "of them said before",
    "share of distinct actions",
    "left one action before the goal",
    "failures: share of the way gone",
    "successes: at most one turn more than the expert",
}
"""Metrics in [0, 1]."""
_REFUSALS = {
    "ingredients that it doesn't have": r"There is not enough",
    "wrong amounts": r"The amounts are wrong",
    "unknown item": r"There is no item",
    "no such recipe, or not to be gathered": r"can't be (?:crafted|gathered)",
}
"""TextCraft's reasons to reject a command, by its answer."""


def refusals(side: Iterable[Played]) -> dict[str, float]:
    """Return the shares of the reasons why TextCraft rejected the commands of unsuccessful episodes."""
    answers = [answer for played in side if not played.episode.success for answer in _answers(played.episode)]
    counts = Counter(
        next((reason for reason, pattern in _REFUSALS.items() if re.search(pattern, answer)), "another reason")
        for answer in answers
    )
    return {reason: counts[reason] / len(answers) for reason in (*_REFUSALS, "another reason")} if answers else {}


def _answers(episode: Episode) -> list[str]:
    shown = [*(turn.observation for turn in episode.turns[1:]), episode.final_observation]
    return [after for turn, after in zip(episode.turns, shown, strict=True) if turn.kind == "act" and not turn.valid]
