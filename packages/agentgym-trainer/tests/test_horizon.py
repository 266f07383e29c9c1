from __future__ import annotations

import pytest
from agentgym_trainer.horizon import FixedHorizon, StepHorizon
from hypothesis import given
from hypothesis import strategies as st


def test_the_stage_changes_at_exactly_the_steps_that_were_set() -> None:
    horizon = StepHorizon((6, 13, 20), every=100)
    assert [horizon.at(step) for step in (0, 99, 100, 199, 200, 201, 506)] == [6, 6, 13, 13, 20, 20, 20]
    assert horizon.longest == 20


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 9), st.integers(0, 80))
def test_every_stage_lasts_every_steps_and_the_last_for_ever(stages: list[int], every: int, step: int) -> None:
    stages.sort()
    unrolled = [turns for turns in stages for _ in range(every)]
    expected = unrolled[step] if step < len(unrolled) else stages[-1]
    assert StepHorizon(tuple(stages), every).at(step) == expected


def test_a_fixed_horizon_never_changes() -> None:
    assert {FixedHorizon(7).at(step) for step in range(1000)} == {7} == {FixedHorizon(7).longest}


@pytest.mark.parametrize("stages", [(), (0, 3), (10, 5), (-1,)])
def test_stages_are_at_least_one_turn_and_never_fall(stages: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="never falling, such as 10 20 30"):
        StepHorizon(stages)


def test_a_horizon_and_a_stage_last_at_least_one() -> None:
    with pytest.raises(ValueError, match="at least 1 turn, not 0"):
        FixedHorizon(0)
    with pytest.raises(ValueError, match="at least 1 step, not 0"):
        StepHorizon(every=0)
