from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest
from agentgym_trainer.curriculum.horizon import (
    KINDS,
    AdaptiveHorizon,
    BackwardHorizon,
    FixedHorizon,
    Horizon,
    Stage,
    StepHorizon,
    StepOutcome,
    begun,
    by_kind,
    improving,
)
from agentgym_trainer.curriculum.plateau import has_plateaued
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick


def run_schedule(
    horizon: Horizon, outcomes: Sequence[StepOutcome], stage: Stage | None = None, done: int = 0
) -> list[Stage]:
    """Return the stage of every update after `done`, and finally that of the next update."""
    stages = [stage or horizon.begin()]
    for step, outcome in enumerate(outcomes, done + 1):
        stages.append(horizon.after(stages[-1], step, outcome))
    return stages


stage_lists = st.lists(st.integers(1, 40), min_size=1, max_size=5).map(lambda turns: tuple(sorted(turns)))
fractions = st.integers(0, 10).map(lambda tenths: tenths / 10)
means = st.none() | st.dictionaries(st.sampled_from(("dev/0", "dev/1", "dev/2")), fractions)
outcome_lists = st.lists(st.builds(StepOutcome, success=means, cut=fractions), max_size=60)
adaptive = st.builds(
    AdaptiveHorizon,
    stages=stage_lists,
    at_least=st.integers(1, 8),
    patience=st.integers(1, 3),
    gain=st.sampled_from((0.1, 0.5, 1.0)),
    cut=fractions,
)
backward = st.builds(
    BackwardHorizon, stage_lists, st.integers(1, 9), st.integers(40, 80), st.sampled_from((1.0, 1.3, 2.0))
)
horizons = st.one_of(
    st.builds(FixedHorizon, st.integers(1, 40)),
    st.builds(StepHorizon, stage_lists, st.integers(1, 9)),
    adaptive,
    backward,
)


@given(horizons, outcome_lists)
def test_resuming_at_any_step_gives_the_same_stages(horizon: Horizon, outcomes: list[StepOutcome]) -> None:
    uninterrupted = run_schedule(horizon, outcomes)
    for step, stage in enumerate(uninterrupted):
        saved = Stage(**json.loads(json.dumps(asdict(stage))))
        assert run_schedule(horizon, outcomes[step:], saved, done=step) == uninterrupted[step:]


@given(horizons, outcome_lists)
def test_stages_advance_by_one_up_to_the_longest(horizon: Horizon, outcomes: list[StepOutcome]) -> None:
    stages = run_schedule(horizon, outcomes)
    for before, after in itertools.pairwise(stages):
        assert after.number - before.number in (0, 1)
        assert (after.since != before.since) == (after.number != before.number)
        assert before.turns <= after.turns <= horizon.longest


def test_fixed_horizon_never_changes() -> None:
    assert (
        {stage.turns for stage in run_schedule(FixedHorizon(7), [StepOutcome({"dev/0": 0.5}, 1.0)] * 300)}
        == {7}
        == {FixedHorizon(7).longest}
    )


# The schedule of the AgentGym-RL paper.


def test_step_horizon_changes_at_exactly_the_configured_steps() -> None:
    stages = run_schedule(StepHorizon((6, 13, 20), every=100), [StepOutcome()] * 506)
    assert [stages[step].turns for step in (0, 99, 100, 199, 200, 201, 506)] == [6, 6, 13, 13, 20, 20, 20]
    assert (stages[0].reason, stages[100].reason, stages[100].since) == ("begin", "steps", 100)


@given(stage_lists, st.integers(1, 9), outcome_lists)
def test_step_horizon_stages_last_every_steps_and_the_last_forever(
    stages: tuple[int, ...], every: int, outcomes: list[StepOutcome]
) -> None:
    expected = [turns for turns in stages for _ in range(every)] + [stages[-1]] * len(outcomes)
    assert [stage.turns for stage in run_schedule(StepHorizon(stages, every), outcomes)] == expected[
        : len(outcomes) + 1
    ]


# The backward schedule.


def test_backward_horizon_begins_further_away_in_each_stage_and_ends_with_whole_tasks() -> None:
    horizon = BackwardHorizon((2, 5), every=10, turns=12, slack=1.5)
    stages = run_schedule(horizon, [StepOutcome()] * 40)
    at = [(stages[step].remaining, stages[step].turns) for step in (0, 9, 10, 19, 20, 40)]
    assert at == [(2, 3), (2, 3), (5, 8), (5, 8), (None, 12), (None, 12)]
    assert (horizon.longest, horizon.whole_from, horizon.limits) == (12, 20, (3, 8, 12))
    assert (stages[0].reason, stages[10].reason, stages[10].since, stages[20].since) == ("begin", "steps", 10, 20)


@given(backward, outcome_lists)
def test_backward_limits_never_exceed_those_of_whole_tasks(
    horizon: BackwardHorizon, outcomes: list[StepOutcome]
) -> None:
    for stage in run_schedule(horizon, outcomes):
        assert stage.turns == (horizon.turns if stage.remaining is None else horizon.limits[stage.number])
        assert stage.remaining is None or stage.remaining <= stage.turns <= horizon.turns


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"stages": ()}, "horizon.stages are numbers of turns"),
        ({"stages": (5, 2)}, "horizon.stages are numbers of turns"),
        ({"every": 0}, "horizon.every must be at least 1 step, not 0"),
        ({"stages": (5, 40)}, "horizon.turns, 30, must be at least the last of horizon.stages, 40"),
        ({"slack": 0.5}, "horizon.slack must be a finite number of at least 1, not 0.5"),
        ({"slack": float("inf")}, "horizon.slack must be a finite number"),
    ],
)
def test_settings_of_backward_horizons_are_checked(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        BackwardHorizon(**settings)


@pytest.mark.parametrize("remaining", [0, -1, 2.0])
def test_stages_of_other_packages_have_at_least_one_remaining_turn(remaining: Any) -> None:
    class Other(FixedHorizon):
        def begin(self) -> Stage:
            return Stage(self.turns, remaining=remaining)

    with pytest.raises(ValueError, match="at least 1 remaining turn"):
        begun(Other(3))


# The adaptive schedule.


def slow_stage_numbers(horizon: AdaptiveHorizon, outcomes: Sequence[StepOutcome]) -> list[int]:
    """Return the stage number of every update, recomputed from the whole stage each time."""
    numbers, start = [0], 0
    for step in range(1, len(outcomes) + 1):
        stage = outcomes[start:step]
        evaluations = [outcome.success for outcome in stage if outcome.success is not None]
        tasks = {task for success in evaluations for task in success}
        success_by_task = {task: [success.get(task) for success in evaluations] for task in tasks}
        plateau = has_plateaued(success_by_task, fewest=horizon.patience + 1, gain=horizon.gain)
        mean = 0.0
        for n, outcome in enumerate(stage, 1):
            decay = 1 - 1 / min(n, horizon.at_least)
            mean = decay * mean + (1 - decay) * outcome.cut
        ends = plateau or (horizon.cut > 0 and mean >= horizon.cut - 1e-12)
        advances = len(stage) >= horizon.at_least and ends and numbers[-1] < len(horizon.stages) - 1
        start = step if advances else start
        numbers.append(numbers[-1] + advances)
    return numbers


@given(adaptive, st.lists(st.builds(StepOutcome, success=means, cut=st.sampled_from((0.0, 1.0))), max_size=40))
def test_adaptive_stages_match_the_slow_reference(horizon: AdaptiveHorizon, outcomes: list[StepOutcome]) -> None:
    # No mean of so few zeros and ones equals this threshold, so rounding can't matter.
    horizon = AdaptiveHorizon(horizon.stages, horizon.at_least, horizon.patience, horizon.gain, cut=0.5123)
    assert [stage.number for stage in run_schedule(horizon, outcomes)] == slow_stage_numbers(horizon, outcomes)


@given(adaptive, outcome_lists)
def test_adaptive_stages_last_at_least_the_minimum(horizon: AdaptiveHorizon, outcomes: list[StepOutcome]) -> None:
    starts = sorted({stage.since for stage in run_schedule(horizon, outcomes)})
    assert all(later - earlier >= horizon.at_least for earlier, later in itertools.pairwise(starts))


def evaluated(*points: float, every: int, tasks: int = 100) -> list[StepOutcome]:
    """Return step outcomes with an evaluation after `every` steps, in which a share `point` of the tasks succeeds."""

    def success(mean: float) -> dict[str, float]:
        return {f"dev/{task}": float(task < round(mean * tasks)) for task in range(tasks)}

    return [outcome for point in points for outcome in [*[StepOutcome()] * (every - 1), StepOutcome(success(point))]]


def test_success_plateau_ends_a_stage() -> None:
    horizon = AdaptiveHorizon((4, 8), at_least=5, patience=2, gain=0.05, cut=0)
    stages = run_schedule(horizon, evaluated(0.2, 0.5, 0.5, 0.5, 0.6, every=5))
    # The three evaluations at 0.5 are the first window in which success confidently rises by less than 0.05.
    assert [stage.turns for stage in stages] == [4] * 20 + [8] * 6
    assert stages[20] == Stage(8, number=1, since=20, reason="plateau")
    assert stages[25].success == {f"dev/{task}": [float(task < 60)] for task in range(100)}


def test_slowly_rising_success_is_not_a_plateau() -> None:
    horizon = AdaptiveHorizon((4, 8), at_least=1, patience=2, gain=0.01, cut=0)
    assert run_schedule(horizon, evaluated(*(0.2 + 0.02 * number for number in range(30)), every=1))[-1].number == 0


def test_stage_keeps_a_bounded_number_of_evaluations() -> None:
    horizon = AdaptiveHorizon((4,), at_least=1, patience=2, cut=0)
    stage = run_schedule(horizon, evaluated(*([0.2] * 80), every=1))[-1]
    assert {len(series) for series in stage.success.values()} == {50}


def test_missing_evaluations_of_a_task_are_recorded_as_none() -> None:
    horizon = AdaptiveHorizon((4, 8), at_least=9, patience=2, cut=0)
    stage = run_schedule(
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


def test_truncation_of_improving_episodes_ends_a_stage() -> None:
    horizon = AdaptiveHorizon((4, 8, 12), at_least=10, cut=0.25)
    stages = run_schedule(horizon, [StepOutcome(cut=0.5)] * 25)
    assert [stage.turns for stage in stages] == [4] * 10 + [8] * 10 + [12] * 6
    assert stages[10] == Stage(8, number=1, since=10, reason="cut")
    assert run_schedule(horizon, [StepOutcome(cut=0.2)] * 100)[-1].number == 0
    assert run_schedule(horizon, [StepOutcome(cut=0.9), *[StepOutcome()] * 99])[-1].number == 0


def test_a_stage_begins_with_the_first_update_that_has_its_episodes() -> None:
    horizon = AdaptiveHorizon(stages=(2, 4), at_least=2, cut=0.5, patience=0)
    stage = horizon.begin()
    for step, cut in enumerate((None, None, 1.0, 1.0), 1):
        assert stage.number == 0
        stage = horizon.after(stage, step, StepOutcome(cut=cut))
    assert (stage.number, stage.since, stage.reason) == (1, 4, "cut")


def test_improving_means_rewards_in_the_second_half() -> None:
    assert [improving(rewards) for rewards in ([], [1], [1, 0], [0, 1], [0, 1, 0], [1, 0, 0])] == [
        False,
        True,
        False,
        True,
        True,
        False,
    ]
    assert not improving([0.0, 0.0, -1.0])


# Kinds and invalid settings.


def test_converting_between_kinds_keeps_the_stages() -> None:
    step = StepHorizon((4, 8, 12), every=25)
    assert by_kind(step) == {
        "fixed": FixedHorizon(12),
        "step": step,
        "adaptive": AdaptiveHorizon((4, 8, 12), 12),
        "backward": BackwardHorizon((2, 4), 25, 12),
    }
    assert BackwardHorizon((2, 4), 25, 12).limits == step.stages
    assert by_kind(step)["step"] is step
    assert by_kind(FixedHorizon(9))["step"] == StepHorizon((9,))
    assert by_kind(FixedHorizon(9))["adaptive"] == AdaptiveHorizon((9,))
    assert by_kind(StepHorizon((9,), every=1))["adaptive"] == AdaptiveHorizon((9,), at_least=1)
    assert by_kind(FixedHorizon(9))["backward"] == BackwardHorizon((4,), turns=9)
    assert by_kind(BackwardHorizon((2, 4), 25, 12))["step"] == StepHorizon((4, 8, 12))
    assert tuple(by_kind(step)) == KINDS


@pytest.mark.parametrize("schedule", [StepHorizon, AdaptiveHorizon])
@pytest.mark.parametrize("stages", [(), (0, 3), (10, 5), (-1,)])
def test_stages_must_be_positive_and_nondecreasing(schedule: type[Horizon], stages: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="never falling, such as 10 20 30"):
        schedule(stages)


def test_turns_and_steps_must_be_at_least_1() -> None:
    with pytest.raises(ValueError, match="at least 1 turn, not 0"):
        FixedHorizon(0)
    with pytest.raises(ValueError, match="at least 1 step, not 0"):
        StepHorizon(every=0)
    with pytest.raises(ValueError, match="at_least must be at least 1 step"):
        AdaptiveHorizon(at_least=0)


def test_invalid_adaptive_horizons_are_rejected() -> None:
    with pytest.raises(ValueError, match="no stage would ever end"):
        AdaptiveHorizon(patience=0, cut=0)
    for settings in ({"gain": 1.5}, {"cut": -0.1}):
        with pytest.raises(ValueError, match="shares from 0 to 1"):
            AdaptiveHorizon(**settings)
    with pytest.raises(ValueError, match=r"With a horizon\.gain of 0 no plateau"):
        AdaptiveHorizon(gain=0.0)
    assert AdaptiveHorizon(patience=0, gain=0.0).cut
