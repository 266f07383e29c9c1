from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict

import pytest
from agentgym_trainer.curriculum.horizon import (
    KINDS,
    AdaptiveHorizon,
    FixedHorizon,
    Horizon,
    Stage,
    StepHorizon,
    StepOutcome,
    by_kind,
    improving,
)
from agentgym_trainer.curriculum.plateau import has_plateaued
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick


def run(horizon: Horizon, seen: Sequence[StepOutcome], stage: Stage | None = None, done: int = 0) -> list[Stage]:
    """The stage of every update from number `done` on, the last one being that of the update that would follow."""
    stages = [stage or horizon.begin()]
    for step, sight in enumerate(seen, done + 1):
        stages.append(horizon.after(stages[-1], step, sight))
    return stages


all_stages = st.lists(st.integers(1, 40), min_size=1, max_size=5).map(lambda turns: tuple(sorted(turns)))
shares = st.integers(0, 10).map(lambda tenths: tenths / 10)
means = st.none() | st.dictionaries(st.sampled_from(("dev/0", "dev/1", "dev/2")), shares)
sights = st.lists(st.builds(StepOutcome, success=means, cut=shares), max_size=60)
adaptive = st.builds(
    AdaptiveHorizon,
    stages=all_stages,
    at_least=st.integers(1, 8),
    patience=st.integers(1, 3),
    gain=st.sampled_from((0.1, 0.5, 1.0)),
    cut=shares,
)
horizons = st.one_of(
    st.builds(FixedHorizon, st.integers(1, 40)), st.builds(StepHorizon, all_stages, st.integers(1, 9)), adaptive
)


@given(horizons, sights)
def test_resuming_at_any_step_is_as_not_having_stopped(horizon: Horizon, seen: list[StepOutcome]) -> None:
    unbroken = run(horizon, seen)
    for step, stage in enumerate(unbroken):
        saved = Stage(**json.loads(json.dumps(asdict(stage))))
        assert run(horizon, seen[step:], saved, done=step) == unbroken[step:]


@given(horizons, sights)
def test_stages_come_one_after_the_other_and_never_above_the_longest(horizon: Horizon, seen: list[StepOutcome]) -> None:
    stages = run(horizon, seen)
    for before, after in itertools.pairwise(stages):
        assert after.number - before.number in (0, 1)
        assert (after.since != before.since) == (after.number != before.number)
        assert before.turns <= after.turns <= horizon.longest


def test_a_fixed_horizon_never_changes() -> None:
    assert (
        {stage.turns for stage in run(FixedHorizon(7), [StepOutcome({"dev/0": 0.5}, 1.0)] * 300)}
        == {7}
        == {FixedHorizon(7).longest}
    )


# The paper's schedule.


def test_the_stage_changes_at_exactly_the_steps_that_were_set() -> None:
    stages = run(StepHorizon((6, 13, 20), every=100), [StepOutcome()] * 506)
    assert [stages[step].turns for step in (0, 99, 100, 199, 200, 201, 506)] == [6, 6, 13, 13, 20, 20, 20]
    assert (stages[0].reason, stages[100].reason, stages[100].since) == ("begin", "steps", 100)


@given(all_stages, st.integers(1, 9), sights)
def test_every_stage_lasts_every_steps_and_the_last_for_ever(
    stages: tuple[int, ...], every: int, seen: list[StepOutcome]
) -> None:
    unrolled = [turns for turns in stages for _ in range(every)] + [stages[-1]] * len(seen)
    assert [stage.turns for stage in run(StepHorizon(stages, every), seen)] == unrolled[: len(seen) + 1]


# Ours.


def unrolled(horizon: AdaptiveHorizon, seen: Sequence[StepOutcome]) -> list[int]:
    """The slow twin: the number of the stage of every update, found by looking at the whole stage again each time."""
    numbers, begun = [0], 0
    for step in range(1, len(seen) + 1):
        stage = seen[begun:step]
        heard = [sight.success for sight in stage if sight.success is not None]
        tasks = {task for success in heard for task in success}
        known = {task: [success.get(task) for success in heard] for task in tasks}
        flat = has_plateaued(known, fewest=horizon.patience + 1, gain=horizon.gain)
        mean = 0.0
        for n, sight in enumerate(stage, 1):
            keep = 1 - 1 / min(n, horizon.at_least)
            mean = keep * mean + (1 - keep) * sight.cut
        over = flat or (horizon.cut > 0 and mean >= horizon.cut - 1e-12)
        moves = len(stage) >= horizon.at_least and over and numbers[-1] < len(horizon.stages) - 1
        begun = step if moves else begun
        numbers.append(numbers[-1] + moves)
    return numbers


@given(adaptive, st.lists(st.builds(StepOutcome, success=means, cut=st.sampled_from((0.0, 1.0))), max_size=40))
def test_adaptive_stages_are_those_of_the_rules_read_aloud(horizon: AdaptiveHorizon, seen: list[StepOutcome]) -> None:
    # A threshold that no mean of so few zeros and ones meets exactly, so that rounding decides nothing.
    horizon = AdaptiveHorizon(horizon.stages, horizon.at_least, horizon.patience, horizon.gain, cut=0.5123)
    assert [stage.number for stage in run(horizon, seen)] == unrolled(horizon, seen)


@given(adaptive, sights)
def test_no_stage_is_left_before_its_least_number_of_steps(horizon: AdaptiveHorizon, seen: list[StepOutcome]) -> None:
    begun = sorted({stage.since for stage in run(horizon, seen)})
    assert all(later - earlier >= horizon.at_least for earlier, later in itertools.pairwise(begun))


def evaluated(*points: float, every: int, tasks: int = 100) -> list[StepOutcome]:
    """Evaluations of so many tasks, of which each once more succeeds the higher the success of all is to be."""

    def success(figure: float) -> dict[str, float]:
        return {f"dev/{task}": float(task < round(figure * tasks)) for task in range(tasks)}

    return [seen for point in points for seen in [*[StepOutcome()] * (every - 1), StepOutcome(success(point))]]


def test_a_plateau_of_success_ends_a_stage() -> None:
    horizon = AdaptiveHorizon((4, 8), at_least=5, patience=2, gain=0.05, cut=0)
    stages = run(horizon, evaluated(0.2, 0.5, 0.5, 0.5, 0.6, every=5))
    # The three evaluations at 0.5 are the first in which success surely rises by less than 0.05.
    assert [stage.turns for stage in stages] == [4] * 20 + [8] * 6
    assert stages[20] == Stage(8, number=1, since=20, reason="plateau")
    assert stages[25].success == {f"dev/{task}": [float(task < 60)] for task in range(100)}


def test_success_that_rises_slowly_is_no_plateau() -> None:
    horizon = AdaptiveHorizon((4, 8), at_least=1, patience=2, gain=0.01, cut=0)
    assert run(horizon, evaluated(*(0.2 + 0.02 * number for number in range(30)), every=1))[-1].number == 0


def test_a_stage_remembers_a_bounded_number_of_evaluations() -> None:
    horizon = AdaptiveHorizon((4,), at_least=1, patience=2, cut=0)
    stage = run(horizon, evaluated(*([0.2] * 80), every=1))[-1]
    assert {len(known) for known in stage.success.values()} == {50}


def test_evaluations_before_a_task_came_and_after_it_failed_are_unknown() -> None:
    horizon = AdaptiveHorizon((4, 8), at_least=9, patience=2, cut=0)
    stage = run(
        horizon,
        [
            StepOutcome({"dev/0": 1.0}),
            StepOutcome({"dev/1": 0.5}),
            StepOutcome(),
            StepOutcome({}),
            StepOutcome({"dev/0": 0.0}),
        ],
    )[-1]
    assert stage.success == {"dev/0": [1.0, None, None, 0.0], "dev/1": [None, 0.5, None, None]}


def test_episodes_cut_short_while_improving_end_a_stage_but_not_before_its_time() -> None:
    horizon = AdaptiveHorizon((4, 8, 12), at_least=10, cut=0.25)
    stages = run(horizon, [StepOutcome(cut=0.5)] * 25)
    assert [stage.turns for stage in stages] == [4] * 10 + [8] * 10 + [12] * 6
    assert stages[10] == Stage(8, number=1, since=10, reason="cut")
    assert run(horizon, [StepOutcome(cut=0.2)] * 100)[-1].number == 0
    assert run(horizon, [StepOutcome(cut=0.9), *[StepOutcome()] * 99])[-1].number == 0


def test_improving_is_earning_in_the_second_half() -> None:
    assert [improving(rewards) for rewards in ([], [1], [1, 0], [0, 1], [0, 1, 0], [1, 0, 0])] == [
        False,
        True,
        False,
        True,
        True,
        False,
    ]
    assert not improving([0.0, 0.0, -1.0])


# Kinds, and what makes no sense.


def test_another_kind_keeps_the_stages_and_the_same_kind_everything() -> None:
    step = StepHorizon((4, 8, 12), every=25)
    assert by_kind(step) == {"fixed": FixedHorizon(12), "step": step, "adaptive": AdaptiveHorizon((4, 8, 12), 12)}
    assert by_kind(step)["step"] is step
    assert by_kind(FixedHorizon(9))["step"] == StepHorizon((9,))
    assert by_kind(FixedHorizon(9))["adaptive"] == AdaptiveHorizon((9,))
    assert by_kind(StepHorizon((9,), every=1))["adaptive"] == AdaptiveHorizon((9,), at_least=1)
    assert tuple(by_kind(step)) == KINDS


@pytest.mark.parametrize("schedule", [StepHorizon, AdaptiveHorizon])
@pytest.mark.parametrize("stages", [(), (0, 3), (10, 5), (-1,)])
def test_stages_are_at_least_one_turn_and_never_fall(schedule: type[Horizon], stages: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="never falling, such as 10 20 30"):
        schedule(stages)


def test_a_horizon_and_a_stage_last_at_least_one() -> None:
    with pytest.raises(ValueError, match="at least 1 turn, not 0"):
        FixedHorizon(0)
    with pytest.raises(ValueError, match="at least 1 step, not 0"):
        StepHorizon(every=0)
    with pytest.raises(ValueError, match="at_least must be at least 1 step"):
        AdaptiveHorizon(at_least=0)


def test_an_adaptive_horizon_has_a_rule_and_shares_for_its_thresholds() -> None:
    with pytest.raises(ValueError, match="no stage would ever end"):
        AdaptiveHorizon(patience=0, cut=0)
    for knobs in ({"gain": 1.5}, {"cut": -0.1}):
        with pytest.raises(ValueError, match="shares from 0 to 1"):
            AdaptiveHorizon(**knobs)
    with pytest.raises(ValueError, match=r"With a horizon\.gain of 0 no plateau"):
        AdaptiveHorizon(gain=0.0)
    assert AdaptiveHorizon(patience=0, gain=0.0).cut
