"""How many turns an episode may have. ScalingInter-RL (arXiv 2509.08755, section 3.3) is `StepHorizon`.

A schedule holds no state. It says which `Stage` a run begins in, and which one follows when an update is done; the
stage is plain data that lies in every checkpoint, so a resumed run is in the stage of the run that wasn't stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from agentgym_trainer.curriculum.plateau import has_plateaued

Reason = Literal["begin", "steps", "plateau", "cut"]
"""Why the schedules of this package begin a stage; those of other packages may have words of their own."""
_MOST = 50
"""Evaluations that a stage remembers: several times as many as show a plateau of 48 tasks that are played once."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a run stands on its schedule. `Stage(**asdict(stage))` is the same stage, also by way of JSON."""

    turns: int
    """The most turns of an episode."""
    number: int = 0
    """Counted from 0."""
    since: int = 0
    """Updates done when it began."""
    reason: str = "begin"
    """What ended the stage before: its number of steps, a plateau of success on dev tasks, or episodes cut short."""
    success: dict[str, list[float | None]] = field(default_factory=dict[str, list[float | None]])
    """By task of the evaluations, its mean success at each of the stage's last ones, oldest first; None where all of
    its episodes failed."""
    cut: float = 0.0
    """Running mean of `Seen.cut` over the stage."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a schedule may look at after an update."""

    success: Mapping[str, float] | None = None
    """Mean success of each task of the evaluation after this update, without those of which every episode failed; None
    where there was no evaluation."""
    cut: float = 0.0
    """Share of this update's episodes that the horizon ended while they were `improving`."""


def improving(rewards: Sequence[float]) -> bool:
    """Whether an episode with these rewards, one for each turn, still earned any in the second half of its turns."""
    return any(reward > 0 for reward in rewards[len(rewards) // 2 :])


class Horizon(Protocol):
    """A schedule of the most turns of an episode. A frozen dataclass whose fields are its settings: where a run stands
    on it is a `Stage`. Those of other packages are named MODULE:NAME.
    """

    @property
    def longest(self) -> int:
        """The most turns that any stage has, at least 1. Evaluation plays with it from the beginning on."""
        ...

    def begin(self) -> Stage:
        """The stage that a run begins in."""
        ...

    def after(self, stage: Stage, step: int, seen: StepOutcome) -> Stage:
        """The stage of the next update. It must depend on its arguments alone.

        Args:
            stage: Of the update that was just taken.
            step: Updates done.
            seen: What was seen in the last one.

        Returns:
            A `Stage` with 1 to `longest` turns; `stage` itself, or one whose `number` is higher and whose `since` is
            `step`. Its fields `success` and `cut` are for the schedule's use.
        """
        ...


@dataclass(frozen=True)
class FixedHorizon:
    """The same number of turns throughout."""

    turns: int = 20

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise ValueError(f"A horizon is at least 1 turn, not {self.turns}.")

    @property
    def longest(self) -> int:
        """The most turns any stage has, which evaluation uses."""
        return self.turns

    def begin(self) -> Stage:
        """The stage that a run begins in."""
        return Stage(self.turns)

    def after(self, stage: Stage, step: int, seen: StepOutcome) -> Stage:
        """The stage of the next update: the same."""
        return stage


@dataclass(frozen=True)
class StepHorizon:
    """The next stage every `every` steps; the last one lasts."""

    stages: tuple[int, ...] = (10, 20, 30)
    """Turns of each stage."""
    every: int = 100
    """Steps in a stage."""

    def __post_init__(self) -> None:
        _check_stages(self.stages)
        if self.every < 1:
            raise ValueError(f"A stage lasts at least 1 step, not {self.every}.")

    @property
    def longest(self) -> int:
        """The most turns any stage has, which evaluation uses."""
        return self.stages[-1]

    def begin(self) -> Stage:
        """The stage that a run begins in."""
        return Stage(self.stages[0])

    def after(self, stage: Stage, step: int, seen: StepOutcome) -> Stage:
        """The stage of the next update, when `step` updates are done. It depends on the step alone."""
        number = min(step // self.every, len(self.stages) - 1)
        return Stage(self.stages[number], number, number * self.every, "steps" if number else "begin")


@dataclass(frozen=True)
class AdaptiveHorizon:
    """The next stage when success on the tasks of the evaluations stops rising, or when too many episodes are cut
    short; the last one lasts. Ours, not from the paper.
    """

    stages: tuple[int, ...] = (10, 20, 30)
    """Turns of each stage."""
    at_least: int = 50
    """Steps that every stage lasts."""
    patience: int = 2
    """Evaluations after a stage's first one that a plateau takes at least; 0 leaves this rule out."""
    gain: float = 0.01
    """A stage ends when success surely rises by less than this from one evaluation to the next: over some of its last
    evaluations the upper bound of the mean rise, task by task, is below it (see `has_plateaued`). The more tasks and
    samples an evaluation has, the fewer evaluations that takes."""
    cut: float = 0.25
    """A stage ends when so large a share of its episodes ran into the horizon while they still earned reward in the
    second half of their turns; 0 leaves this rule out. The share is a running mean that forgets over `at_least` steps.
    Worlds that pay at the end alone have no such episodes."""

    def __post_init__(self) -> None:
        _check_stages(self.stages)
        if self.at_least < 1 or self.patience < 0:
            raise ValueError("A stage lasts at_least 1 step, and patience is a number of evaluations from 0.")
        if not (0 <= self.gain <= 1 and 0 <= self.cut <= 1):
            raise ValueError("horizon.gain and horizon.cut are shares from 0 to 1.")
        if self.patience and not self.gain:
            raise ValueError("No number of evaluations shows that success rises by less than a horizon.gain of 0.")
        if not self.patience and not self.cut:
            raise ValueError("With patience 0 and cut 0 no stage would ever end; set one of them.")

    @property
    def longest(self) -> int:
        """The most turns any stage has, which evaluation uses."""
        return self.stages[-1]

    def begin(self) -> Stage:
        """The stage that a run begins in."""
        return Stage(self.stages[0])

    def after(self, stage: Stage, step: int, seen: StepOutcome) -> Stage:
        """The stage of the next update, when `step` updates are done and this was seen in the last one."""
        stage = self._noted(stage, step, seen)
        if step - stage.since < self.at_least or stage.number == len(self.stages) - 1:
            return stage
        if self.patience and has_plateaued(stage.success, fewest=self.patience + 1, gain=self.gain):
            return self._next(stage, step, "plateau")
        if self.cut and stage.cut >= self.cut:
            return self._next(stage, step, "cut")
        return stage

    def _noted(self, stage: Stage, step: int, seen: StepOutcome) -> Stage:
        cut = stage.cut + (seen.cut - stage.cut) / min(step - stage.since, self.at_least)
        if seen.success is None:
            return replace(stage, cut=cut)
        before = max(map(len, stage.success.values()), default=0)
        heard = {task: [*means, seen.success.get(task)] for task, means in stage.success.items()}
        new = {task: [*[None] * before, mean] for task, mean in seen.success.items() if task not in heard}
        return replace(stage, cut=cut, success={task: means[-_MOST:] for task, means in (heard | new).items()})

    def _next(self, stage: Stage, step: int, why: Reason) -> Stage:
        return Stage(self.stages[stage.number + 1], stage.number + 1, step, why)


def begun(horizon: Horizon) -> Stage:
    """The stage that a run begins in.

    Raises:
        ValueError: as `next_stage`.
    """
    return _checked(horizon, horizon.begin())


def next_stage(horizon: Horizon, stage: Stage, step: int, seen: StepOutcome) -> Stage:
    """The stage of the next update; see `Horizon.after`.

    Raises:
        ValueError: when the schedule's stage is none, or has not from 1 up to `longest` turns.
    """
    return _checked(horizon, horizon.after(stage, step, seen))


def _checked(horizon: Horizon, stage: Stage) -> Stage:
    if type(stage) is not Stage or type(stage.turns) is not int or not 1 <= stage.turns <= horizon.longest:
        raise ValueError(f"a Stage has from 1 to {horizon.longest} turns, the longest of the schedule; this is {stage}")
    return stage


KINDS = ("fixed", "step", "adaptive")


def by_kind(horizon: Horizon) -> dict[str, Horizon]:
    """One schedule of each of the `KINDS`: of its own kind `horizon` itself, of the others one with its stages.

    What adapts may then go on in half the time that steps took, but not sooner. Of a schedule of another package the
    longest stage alone is known.
    """
    stages = horizon.stages if isinstance(horizon, StepHorizon | AdaptiveHorizon) else (horizon.longest,)
    at_least = max(1, horizon.every // 2) if isinstance(horizon, StepHorizon) else AdaptiveHorizon.at_least
    made = (FixedHorizon(stages[-1]), StepHorizon(stages), AdaptiveHorizon(stages, at_least))
    same = (horizon if type(schedule) is type(horizon) else schedule for schedule in made)
    return dict(zip(KINDS, same, strict=True))


def _check_stages(stages: tuple[int, ...]) -> None:
    if not stages or min(stages) < 1 or list(stages) != sorted(stages):
        raise ValueError(f"Stages are turns, at least 1 and never falling, such as 10 20 30; not {stages}.")
