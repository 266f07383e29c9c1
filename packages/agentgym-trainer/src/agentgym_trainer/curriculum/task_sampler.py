"""Samplers of the training tasks of a step. They use task ids and success rates only, not environments.

A sampler is a setting; its state is plain JSON and part of the checkpoint.
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
"""The state of a sampler: numbers by name, such as the recent success of each task by its id."""


class TaskSampler(Protocol):
    """A sampler assigns a weight to each training task.

    It is a frozen dataclass whose fields are its settings; its state is passed in. `SAMPLERS` has those of this
    package, and those of other packages are named MODULE:NAME.
    """

    def weights(self, ids: Sequence[str], state: State) -> Sequence[float]:
        """Return the unnormalized sampling weights of the tasks.

        Args:
            ids: All training tasks of one environment.
            state: What `after` returned last, for all environments; empty at the beginning and in each new stage of the
                horizon, since tasks that took too many turns until then may now succeed.

        Returns:
            One finite, non-negative weight for each id, at least one of them positive. Tasks of weight 0 are never
            drawn.
        """
        ...

    def after(self, state: State, success: Mapping[str, float]) -> State:
        """Return the state after a step. It must depend on the arguments only, and must not change `state`.

        Args:
            state: State before the step.
            success: Success rate from 0 to 1 of each task that the step played, by task id, without failed episodes.
        """
        ...


@dataclass(frozen=True)
class Uniform:
    """All tasks have the same weight."""

    def weights(self, ids: Sequence[str], state: State) -> list[float]:
        """Return the unnormalized sampling weights of the tasks."""
        return [1.0] * len(ids)

    def after(self, state: State, success: Mapping[str, float]) -> State:
        """Return the state after a step with these success rates."""
        return state


@dataclass(frozen=True)
class MidSuccess:
    """Prefer tasks of intermediate success: if a task always or never succeeds, comparing its episodes gives no signal.

    A task of success p has weight 4 p (1 - p), the "learnability" of arXiv 2408.15099 scaled to at most 1, but at least
    `floor`; p is a running mean over the steps that played the task, initially 0.5.
    """

    floor: float = 0.1
    """Minimum weight, so that tasks that always or never succeed are still drawn."""
    memory: float = 0.5
    """Weight of the previous p in the running mean."""

    def __post_init__(self) -> None:
        if not 0 < self.floor <= 1 or not 0 <= self.memory < 1:
            raise ValueError(
                "The sampler mid-success needs a floor above 0 up to 1 and a memory from 0 to below 1, "
                f"not {self.floor} and {self.memory}."
            )

    def weights(self, ids: Sequence[str], state: State) -> list[float]:
        """Return the unnormalized sampling weights of the tasks."""
        return [max(self.floor, 4 * p * (1 - p)) for p in (state.get(task, 0.5) for task in ids)]

    def after(self, state: State, success: Mapping[str, float]) -> State:
        """Return the state after a step with these success rates."""
        played = {task: self.memory * state.get(task, 0.5) + (1 - self.memory) * p for task, p in success.items()}
        return state | played


SAMPLERS: dict[str, TaskSampler] = {"uniform": Uniform(), "mid-success": MidSuccess()}
"""Samplers by command-line name."""


def remembered(sampler: TaskSampler, state: State, success: Mapping[str, float]) -> State:
    """Return the sampler's state after a step, checked; see `TaskSampler.after`.

    Raises:
        ValueError: The state would not survive a round trip through JSON in a checkpoint.
    """
    after = sampler.after(state, success)
    try:
        same = json.loads(json.dumps(after)) == after
    except (TypeError, ValueError):
        same = False
    if not same:
        raise ValueError("its state must be a dict from strings to finite numbers, so that checkpoints can hold it")
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
    """Draw tasks without replacement.

    Args:
        sampler: Assigns the weights.
        ids: All tasks of the split.
        count: Number of tasks to draw.
        state: State of the sampler.
        rng: The only source of randomness.
        without: Ids to exclude.

    Returns:
        Indices into `ids`. If there are fewer tasks than `count`, tasks are drawn with replacement, or, if `without` is
        given, all remaining tasks are returned.

    Raises:
        ValueError: The sampler's weights are not as `TaskSampler.weights` must return them.
    """
    raw = sampler.weights(ids, state)
    if len(raw) != len(ids) or not all(0 <= weight < math.inf for weight in raw) or (ids and not any(raw)):
        raise ValueError(f"its weights must be {len(ids)} finite numbers from 0, one for each task, and not all 0")
    weights = [0.0 if task in without else weight for task, weight in zip(ids, raw, strict=True)]
    left = sum(w > 0 for w in weights)
    if without:
        count = min(count, left)
    if not count:
        return []
    total = sum(weights)
    chosen = rng.choice(len(ids), count, replace=left < count, p=[w / total for w in weights])
    return chosen.tolist()


def evenly(ids: Sequence[str], count: int, rng: np.random.Generator) -> list[int]:
    """Draw tasks evenly: the numbers of draws of any two tasks differ by at most 1.

    Args:
        ids: All tasks of the split.
        count: Number of tasks to draw.
        rng: The only source of randomness.

    Returns:
        Indices into `ids`.
    """
    passes, rest = divmod(count, max(1, len(ids)))
    return [*range(len(ids))] * passes + draw(Uniform(), ids, rest, state={}, rng=rng)


def apportion(count: int, weights: Sequence[float], rng: np.random.Generator) -> list[int]:
    """Split `count` into integers that are proportional to `weights` in expectation, and off by less than 1.

    Systematic sampling: equidistant points with a random offset are placed on the concatenated shares.
    """
    shift = rng.random()
    ends = [count * end / sum(weights) for end in accumulate(weights)]
    # The last end equals `count` up to rounding, which must not lose or add a task.
    marks = [0, *(int(end + shift) for end in ends[:-1]), count]
    return [after - before for before, after in pairwise(marks)]
