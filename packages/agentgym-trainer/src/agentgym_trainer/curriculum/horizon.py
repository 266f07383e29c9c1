"""Schedules of the maximum number of turns per episode. `StepHorizon` is ScalingInter-RL (arXiv 2509.08755, sec. 3.3).

`BackwardHorizon` also schedules where episodes begin.

A schedule has no state. It returns the `Stage` that a run begins in and the one after each update. The stage is plain
data and part of every checkpoint, so a resumed run is in the same stage as an uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal, Protocol

from agentgym_trainer.curriculum.plateau import has_plateaued

Reason = Literal["begin", "steps", "plateau", "cut"]
"""Why the schedules of this package begin a stage; those of other packages may use other values."""
_MAX_EVALUATIONS = 50
"""Evaluations that a stage keeps: several times as many as it takes to detect a plateau on 48 tasks with one episode
each."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A run's position in its schedule. `Stage(**asdict(stage))` restores it, also after a round trip through JSON."""

    turns: int
    """Maximum number of the policy's turns in an episode."""
    number: int = 0
    """Index of the stage, from 0."""
    since: int = 0
    """Number of updates done when the stage began. An adaptive stage of an asynchronous run begins with the first
    update on its own episodes."""
    reason: str = "begin"
    """What ended the previous stage: its number of steps, a plateau of success on dev tasks, or truncated episodes."""
    success: dict[str, list[float | None]] = field(default_factory=dict[str, list[float | None]])
    """For each evaluation task, by environment and id, its mean success at each of the stage's last evaluations, oldest
    first; None where it wasn't played."""
    cut: float = 0.0
    """Running mean of `StepOutcome.cut` over the stage."""
    remaining: int | None = None
    """Number of turns that the environment's expert has left where episodes begin (`agentgym_envs.ExpertStart`); None:
    the policy plays whole tasks."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The statistics of an update that a schedule may use."""

    success: Mapping[str, float] | None = None
    """Mean success of each task, by environment and id, in the evaluation after this update, where a failed episode is
    no success; None if there was no evaluation."""
    cut: float | None = 0.0
    """Share of this update's episodes of the stage that the horizon truncated while they were `improving`; None if all
    its episodes began in an earlier stage, as in the first updates of a stage of an asynchronous run."""

    @property
    def mean_success(self) -> float | None:
        """Mean success over tasks, by which the best checkpoint is chosen; None if there was no evaluation."""
        return fmean(self.success.values()) if self.success else None


def improving(rewards: Sequence[float]) -> bool:
    """Whether an episode with these rewards, one for each turn, earned any reward in the second half of its turns."""
    return any(reward > 0 for reward in rewards[len(rewards) // 2 :])


class Horizon(Protocol):
    """A schedule of the maximum number of turns per episode.

    It is a frozen dataclass whose fields are its settings; a run's position in it is a `Stage`. Schedules of other
    packages are named MODULE:NAME.
    """

    @property
    def longest(self) -> int:
        """The largest number of turns of any stage, at least 1. Evaluation uses it from the beginning."""
        ...

    def begin(self) -> Stage:
        """Return the stage that a run begins in."""
        ...

    def after(self, stage: Stage, step: int, seen: StepOutcome) -> Stage:
        """Return the stage of the next update. It must depend on the arguments only.

        Args:
            stage: Stage of the last update.
            step: Number of updates done.
            seen: Statistics of the last update.

        Returns:
            A `Stage` with 1 to `longest` turns: one with the same `number`, or one with a higher `number` and with
            `since` set to `step`. It may set `remaining`, to at least 1 turn. The fields `success` and `cut` are for
            the schedule's own use.
        """
        ...


@dataclass(frozen=True)
class FixedHorizon:
    """The same number of turns for the whole run."""

    turns: int = 20
    """Maximum number of turns per episode."""

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise ValueError(f"A horizon is at least 1 turn, not {self.turns}.")

    @property
    def longest(self) -> int:
        """The largest number of turns of any stage, which evaluation uses."""
        return self.turns

    def begin(self) -> Stage:
        """Return the stage that a run begins in."""
        return Stage(self.turns)

    def after(self, stage: Stage, step: int, seen: StepOutcome) -> Stage:
        """Return the stage of the next update, which is the same."""
        return stage


@dataclass(frozen=True)
class StepHorizon:
    """A schedule that advances to the next stage every `every` steps and stays in the last one."""

    stages: tuple[int, ...] = (10, 20, 30)
    """Maximum number of turns per episode in each stage."""
    every: int = 100
    """Steps per stage."""

    def __post_init__(self) -> None:
        _check_stages(self.stages)
        if self.every < 1:
            raise ValueError(f"horizon.every must be at least 1 step, not {self.every}.")

    @property
    def longest(self) -> int:
        """The largest number of turns of any stage, which evaluation uses."""
        return self.stages[-1]

    def begin(self) -> Stage:
        """Return the stage that a run begins in."""
        return Stage(self.stages[0])

    def after(self, stage: Stage, step: int, seen: StepOutcome) -> Stage:
        """Return the stage after `step` updates. It depends on the step only."""
        number = min(step // self.every, len(self.stages) - 1)
        return Stage(self.stages[number], number, number * self.every, "steps" if number else "begin")


@dataclass(frozen=True)
class AdaptiveHorizon:
    """A schedule that advances when success on the evaluation tasks plateaus or too many episodes are truncated.

    It stays in the last stage. It is not from the paper.
    """

    stages: tuple[int, ...] = (10, 20, 30)
    """Maximum number of turns per episode in each stage."""
    at_least: int = 50
    """Minimum number of steps per stage."""
    patience: int = 2
    """Minimum number of evaluations after a stage's first one before a plateau ends the stage; 0 disables this rule."""
    gain: float = 0.01
    """End a stage when the gain of success per evaluation is confidently below this: over some window of the last
    evaluations, the upper confidence bound of the mean gain per task is below it (see `has_plateaued`). The more tasks
    and samples an evaluation has, the fewer evaluations this takes."""
    cut: float = 0.25
    """End a stage when this share of its episodes was truncated by the horizon after earning reward in the second half
    of their turns; 0 disables this rule. The share is a running mean over `at_least` steps. Environments that give a
    reward only at the end have no such episodes."""

    def __post_init__(self) -> None:
        _check_stages(self.stages)
        if self.at_least < 1 or self.patience < 0:
            raise ValueError("horizon.at_least must be at least 1 step, and horizon.patience at least 0 evaluations.")
        if not (0 <= self.gain <= 1 and 0 <= self.cut <= 1):
            raise ValueError("horizon.gain and horizon.cut are shares from 0 to 1.")
        if self.patience and not self.gain:
            raise ValueError(
                "With a horizon.gain of 0 no plateau could be detected; set it above 0, or set horizon.patience 0."
            )
        if not self.patience and not self.cut:
            raise ValueError("With horizon.patience 0 and horizon.cut 0 no stage would ever end; set one of them.")

    @property
    def longest(self) -> int:
        """The largest number of turns of any stage, which evaluation uses."""
        return self.stages[-1]

    def begin(self) -> Stage:
        """Return the stage that a run begins in."""
        return Stage(self.stages[0])

    def after(self, stage: Stage, step: int, seen: StepOutcome) -> Stage:
        """Return the stage after `step` updates, given the statistics of the last one."""
        stage = self._recorded(stage, step, seen)
        if step - stage.since < self.at_least or stage.number == len(self.stages) - 1:
            return stage
        if self.patience and has_plateaued(stage.success, fewest=self.patience + 1, gain=self.gain):
            return self._next(stage, step, "plateau")
        if self.cut and stage.cut >= self.cut:
            return self._next(stage, step, "cut")
        return stage

    def _recorded(self, stage: Stage, step: int, seen: StepOutcome) -> Stage:
        cut = stage.cut
        if seen.cut is not None:
            cut += (seen.cut - stage.cut) / min(step - stage.since, self.at_least)
        elif stage.since == step - 1:  # it begins with the first update that has episodes of its own
            stage = replace(stage, since=step)
        if seen.success is None:
            return replace(stage, cut=cut)
        before = max(map(len, stage.success.values()), default=0)
        known = {task: [*means, seen.success.get(task)] for task, means in stage.success.items()}
        new = {task: [*[None] * before, mean] for task, mean in seen.success.items() if task not in known}
        success = {task: means[-_MAX_EVALUATIONS:] for task, means in (known | new).items()}
        return replace(stage, cut=cut, success=success)

    def _next(self, stage: Stage, step: int, reason: Reason) -> Stage:
        return Stage(self.stages[stage.number + 1], stage.number + 1, step, reason)


@dataclass(frozen=True)
class BackwardHorizon:
    """A schedule in which episodes begin near the end of their task, and further away in each stage.

    The environment's expert plays the turns before (`agentgym_envs.ExpertStart`). In the last stage, the policy plays
    whole tasks. It advances every `every` steps, like `StepHorizon`. Reverse curricula of this kind: arXiv 1707.05300,
    arXiv 1812.03381, and R3 for language models (arXiv 2402.05808).
    """

    stages: tuple[int, ...] = (5, 10)
    """Number of turns that the expert has left where episodes begin, in each stage but the last."""
    every: int = 100
    """Steps per stage."""
    turns: int = 30
    """Maximum number of turns per episode in the last stage, in which the policy plays whole tasks."""
    slack: float = 2.0
    """Maximum number of the policy's turns in the other stages, as a multiple of those that the expert has left; never
    more than `turns`."""

    def __post_init__(self) -> None:
        _check_stages(self.stages)
        if self.every < 1:
            raise ValueError(f"horizon.every must be at least 1 step, not {self.every}.")
        if self.turns < self.stages[-1]:
            raise ValueError(
                f"horizon.turns, {self.turns}, must be at least the last of horizon.stages, {self.stages[-1]}: a whole "
                "task takes no fewer turns than a part of it."
            )
        if not 1 <= self.slack < math.inf:
            raise ValueError(f"horizon.slack must be a finite number of at least 1, not {self.slack}.")

    @property
    def longest(self) -> int:
        """The largest number of turns of any stage, which evaluation uses."""
        return self.turns

    @property
    def limits(self) -> tuple[int, ...]:
        """Maximum number of the policy's turns in each stage, including the last."""
        return (*(min(self.turns, math.ceil(self.slack * remaining)) for remaining in self.stages), self.turns)

    @property
    def whole_from(self) -> int:
        """Number of updates after which the policy plays whole tasks."""
        return len(self.stages) * self.every

    def begin(self) -> Stage:
        """Return the stage that a run begins in."""
        return self._stage(0)

    def after(self, stage: Stage, step: int, seen: StepOutcome) -> Stage:
        """Return the stage after `step` updates. It depends on the step only."""
        return self._stage(min(step // self.every, len(self.stages)))

    def _stage(self, number: int) -> Stage:
        remaining = (*self.stages, None)[number]
        reason: Reason = "steps" if number else "begin"
        return Stage(self.limits[number], number, number * self.every, reason, remaining=remaining)


def begun(horizon: Horizon) -> Stage:
    """Return the stage that a run begins in, checked.

    Raises:
        ValueError: As `next_stage`.
    """
    return _checked(horizon, horizon.begin())


def next_stage(horizon: Horizon, stage: Stage, step: int, seen: StepOutcome) -> Stage:
    """Return the stage of the next update, checked; see `Horizon.after`.

    Raises:
        ValueError: The schedule returned something other than a `Stage` with 1 to `longest` turns, and at least 1
            remaining turn if any are set.
    """
    return _checked(horizon, horizon.after(stage, step, seen))


def _checked(horizon: Horizon, stage: Stage) -> Stage:
    if type(stage) is not Stage or type(stage.turns) is not int or not 1 <= stage.turns <= horizon.longest:
        raise ValueError(f"a Stage has from 1 to {horizon.longest} turns, the longest of the schedule; this is {stage}")
    if stage.remaining is not None and (type(stage.remaining) is not int or stage.remaining < 1):
        raise ValueError(f"a Stage has at least 1 remaining turn, or None; this is {stage}")
    return stage


KINDS = ("fixed", "step", "adaptive", "backward")


def by_kind(horizon: Horizon) -> dict[str, Horizon]:
    """Return one schedule of each of the `KINDS`: `horizon` itself for its own kind, and others with its stages.

    An adaptive schedule made from a step schedule has at least half as many steps per stage. A backward schedule begins
    where the expert has half of a stage's turns left, rounded down but at least 1, and allows twice as many, so that
    even limits stay the same; made from a step schedule, it has the same steps per stage. Of a schedule of another
    package, only the longest stage is known.
    """
    stages, every, at_least = (horizon.longest,), StepHorizon.every, AdaptiveHorizon.at_least
    if isinstance(horizon, StepHorizon | AdaptiveHorizon):
        stages = horizon.stages
    if isinstance(horizon, BackwardHorizon):
        stages = horizon.limits
    if isinstance(horizon, StepHorizon):
        every, at_least = horizon.every, max(1, horizon.every // 2)
    remaining = tuple(max(1, turns // 2) for turns in (stages[:-1] or stages))
    made = (
        FixedHorizon(stages[-1]),
        StepHorizon(stages),
        AdaptiveHorizon(stages, at_least),
        BackwardHorizon(remaining, every, stages[-1]),
    )
    same = (horizon if type(schedule) is type(horizon) else schedule for schedule in made)
    return dict(zip(KINDS, same, strict=True))


def _check_stages(stages: tuple[int, ...]) -> None:
    if not stages or min(stages) < 1 or list(stages) != sorted(stages):
        raise ValueError(
            f"horizon.stages are numbers of turns, at least 1 and never falling, such as 10 20 30; not {stages}."
        )
