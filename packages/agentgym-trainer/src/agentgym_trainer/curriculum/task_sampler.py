"""Which training tasks a step plays. Knows tasks by their ids and how often they succeeded, and knows no worlds.

A sampler is a setting; what it remembers is its state, plain JSON that lives in the checkpoint.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np

State = dict[str, float]
"""What a sampler remembers: numbers by names, such as the recent success of each task by its id."""


class TaskSampler(Protocol):
    """How likely each training task is to be drawn. A frozen dataclass whose fields are its settings: what it remembers
    is handed to it. `SAMPLERS` has those of this package, and those of other packages are named MODULE:NAME.
    """

    def weights(self, ids: Sequence[str], state: State) -> Sequence[float]:
        """How likely each task is, up to a factor.

        Args:
            ids: All training tasks of one environment.
            state: What `after` returned last, of all environments; empty at the beginning.

        Returns:
            As many finite weights as ids, none below 0; tasks of weight 0 are never drawn, and one at least is above 0.
        """
        ...

    def after(self, state: State, success: Mapping[str, float]) -> State:
        """What to remember after a step. It must not change `state`, and depend on its arguments alone.

        Args:
            state: What was remembered before it.
            success: By the id of each task that the step played, the share of its episodes that succeeded, from 0 to 1,
                without those that failed.
        """
        ...


@dataclass(frozen=True)
class Uniform:
    """Every task is as likely as any other."""

    def weights(self, ids: Sequence[str], state: State) -> list[float]:
        """How likely each task is, up to a factor."""
        return [1.0] * len(ids)

    def after(self, state: State, success: Mapping[str, float]) -> State:
        """The state once these tasks have been played with this mean success."""
        return state


@dataclass(frozen=True)
class MidSuccess:
    """Prefers tasks that succeed sometimes: from what always or never succeeds, comparing episodes teaches nothing.

    A task of success p has weight 4 p (1 - p), the "learnability" of arXiv 2408.15099 scaled to at most 1, but at least
    `floor`; p is a running mean over the steps that played the task and begins at a half.
    """

    floor: float = 0.1
    """Weight of a task that always or never succeeds, so that none is given up."""
    memory: float = 0.5
    """Share of a task's p that a new step leaves as it was."""

    def __post_init__(self) -> None:
        if not 0 < self.floor <= 1 or not 0 <= self.memory < 1:
            raise ValueError(
                "A middling sampler needs a floor above 0 up to 1 and a memory from 0 to below 1, "
                f"not {self.floor} and {self.memory}."
            )

    def weights(self, ids: Sequence[str], state: State) -> list[float]:
        """How likely each task is, up to a factor."""
        return [max(self.floor, 4 * p * (1 - p)) for p in (state.get(task, 0.5) for task in ids)]

    def after(self, state: State, success: Mapping[str, float]) -> State:
        """The state once these tasks have been played with this mean success."""
        seen = {task: self.memory * state.get(task, 0.5) + (1 - self.memory) * p for task, p in success.items()}
        return state | seen


SAMPLERS: dict[str, TaskSampler] = {"uniform": Uniform(), "mid-success": MidSuccess()}
"""Samplers by the names that the command line takes."""


def remembered(sampler: TaskSampler, state: State, success: Mapping[str, float]) -> State:
    """What a sampler remembers after a step; see `Sampler.after`.

    Raises:
        ValueError: when a checkpoint could not give it back as it is.
    """
    after = sampler.after(state, success)
    try:
        same = json.loads(json.dumps(after)) == after
    except (TypeError, ValueError):
        same = False
    if not same:
        raise ValueError("what it remembers has to be a dict of finite numbers by text, to be kept in checkpoints")
    return after


def draw(
    sampler: TaskSampler,
    ids: Sequence[str],
    count: int,
    *,
    state: State,
    rng: np.random.Generator,
    without: Collection[str] = (),
) -> list[int]:
    """Draw tasks, each once.

    Args:
        sampler: Says how likely each is.
        ids: All of the split.
        count: How many are wanted.
        state: What the sampler remembers.
        rng: The only source of chance.
        without: Ids that must not be drawn again.

    Returns:
        Places in `ids`. Where there are fewer tasks than `count`: some twice, or with `without` all that are left.

    Raises:
        ValueError: when the sampler's weights aren't what `Sampler.weights` has to return.
    """
    known = sampler.weights(ids, state)
    if len(known) != len(ids) or not all(0 <= weight < math.inf for weight in known) or (ids and not any(known)):
        raise ValueError(f"its weights have to be {len(ids)} finite numbers from 0, one for each task, and not all 0")
    weights = [0.0 if task in without else weight for task, weight in zip(ids, known, strict=True)]
    left = sum(w > 0 for w in weights)
    if without:
        count = min(count, left)
    if not count:
        return []
    total = sum(weights)
    chosen = rng.choice(len(ids), count, replace=left < count, p=[w / total for w in weights])
    return chosen.tolist()


def evenly(ids: Sequence[str], count: int, rng: np.random.Generator) -> list[int]:
    """Draw tasks, each as often as any other or once more.

    Args:
        ids: All of the split.
        count: How many are wanted.
        rng: The only source of chance.

    Returns:
        Places in `ids`.
    """
    passes, rest = divmod(count, max(1, len(ids)))
    return [*range(len(ids))] * passes + draw(Uniform(), ids, rest, state={}, rng=rng)


def apportion(count: int, weights: Sequence[float], rng: np.random.Generator) -> list[int]:
    """Split `count` into whole numbers that are in expectation proportional to `weights`, and never off by 1 or more.

    Systematic sampling: a comb of unit steps, shifted by chance, is laid over the shares laid end to end.
    """
    shift = rng.random()
    ends = [count * end / sum(weights) for end in accumulate(weights)]
    # The last end is `count` up to rounding, which must not lose or add one.
    marks = [0, *(int(end + shift) for end in ends[:-1]), count]
    return [after - before for before, after in pairwise(marks)]
