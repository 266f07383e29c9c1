"""Tests of the causes of failure: each kind at its boundaries, their precedence, and any episode at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
from agentgym_envs import Episode, Reply, Turn
from agentgym_eval.metrics.failure_causes import (
    KINDS,
    LABELS,
    ORACLE_KINDS,
    Distances,
    FailureCause,
    FailureCriteria,
    Kind,
    all_measured,
    failure_cause,
    failure_causes,
    without_oracle,
)
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.quick

Mark = Literal["new", "malformed", "invalid", "same"]


def turn(at: int, mark: Mark = "new", **fields: Any) -> Turn:
    """A turn in a state and with an observation of its own; `same` ones share state, observation and action."""
    where = "here" if mark == "same" else f"state {at}"
    action = None if mark == "malformed" else "wait" if mark == "same" else f"do {at}"
    own: dict[str, Any] = {"observation": where, "reply": Reply(f"I {action}"), "action": action, "reward": 0.0}
    return Turn(**{**own, "valid": mark in ("new", "same"), "state_key": where, **fields})


def episode(turns: Sequence[Turn], stop: str = "truncated", success: bool | None = False, **fields: Any) -> Episode:
    record: dict[str, Any] = {
        "env": "w", "task_id": "t/1", "split": "test", "category": "c", "difficulty": 1, "policy": "p", "sample": 0,
        "instructions": "", "turns": tuple(turns), "final_observation": "end", "stop": stop,
        "score": None if success is None else float(success), "success": success,
    }  # fmt: skip
    return Episode(**record | fields)


def of(marks: Sequence[Mark], **fields: Any) -> Episode:
    return episode([turn(at, mark) for at, mark in enumerate(marks)], **fields)


def where(cause: FailureCause | None) -> tuple[str, int] | None:
    return cause and (cause.kind, cause.turn)


def cause_at(found: Episode, distances: Distances | None = None, **criteria: Any) -> tuple[str, int] | None:
    return where(failure_cause(found, distances=distances, criteria=FailureCriteria(**criteria)))


def test_successes_and_broken_episodes_have_no_cause() -> None:
    marks: list[Mark] = ["malformed"] * 5
    assert failure_cause(of(marks, success=True)) is None
    assert failure_cause(of(marks, stop="failed", success=None, error="the browser died")) is None


def test_every_kind_has_a_label_and_oracle_kinds_are_kinds() -> None:
    assert set(LABELS) == set(KINDS)
    assert set(KINDS) > ORACLE_KINDS


# Endings by the agent.


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("<answer>unknown</answer>", "gave_up"),
        ("<answer> I don't know. </answer>", "gave_up"),
        ("<answer>I cannot find the answer in these passages</answer>", "gave_up"),
        ("<answer></answer>", "gave_up"),
        ("<answer> \n </answer>", "gave_up"),
        ("<answer>I don\u2019t know</answer>", "gave_up"),
        ("stop [I can\u2019t find the order]", "gave_up"),
        ("report_infeasible('there is no such\norder')", "gave_up"),
        ("stop [N/A]", "gave_up"),
        ("stop[n/a]", "gave_up"),
        ("give up", "gave_up"),
        ("<answer>The Unknown Soldier</answer>", "wrong_answer"),
        ("<answer>None of the above was king</answer>", "wrong_answer"),
        ("stop [12]", "wrong_answer"),
        ("I add them up.\n<answer>12</answer>", "wrong_answer"),
        ("send_msg_to_user('It is open until 5 pm.')", "wrong_answer"),
        ("So it is \\boxed{12}.", "wrong_answer"),
        ("stop []", "wrong_final_action"),  # says that the task is done
        ("focus on tree", "wrong_final_action"),
        ("click('12')", "wrong_final_action"),
        ("pick up", "wrong_final_action"),
        ("submit", "wrong_final_action"),
    ],
)
def test_who_ends_the_episode_gave_up_or_was_wrong(action: str, kind: str) -> None:
    turns = [turn(0), turn(1), turn(2, action=action)]
    assert cause_at(episode(turns, "terminated")) == (kind, 2)


def test_the_ending_goes_before_invalid_actions_and_distances() -> None:
    found = episode([*(turn(at, "invalid") for at in range(4)), turn(4, action="stop [3]")], "terminated")
    assert cause_at(found, [1, 1, 1, 1, 1, None]) == ("wrong_answer", 4)


# Procedural failures.


@pytest.mark.parametrize(("mark", "kind"), [("malformed", "format"), ("invalid", "invalid_actions")])
def test_three_turns_without_progress_at_the_end_are_a_stall(mark: Mark, kind: str) -> None:
    assert cause_at(of(["new"] * 7 + [mark] * 3)) == (kind, 7)
    assert cause_at(of(["new"] * 7 + [mark] * 2)) == ("turn_budget", 8)
    assert cause_at(of(["new"] * 7 + [mark] * 3 + ["new"])) == ("turn_budget", 10)
    assert cause_at(of(["new"] * 7 + [mark] * 2), stall=2) == (kind, 7)


@pytest.mark.parametrize(("mark", "kind"), [("malformed", "format"), ("invalid", "invalid_actions")])
def test_half_of_the_turns_without_progress_are_the_cause_wherever_they_are(mark: Mark, kind: str) -> None:
    assert cause_at(of(["new", mark, mark, "new"])) == (kind, 1)
    assert cause_at(of(["new", mark, mark, "new", "new"])) == ("turn_budget", 4)
    assert cause_at(of(["new", mark, mark, "new", "new"]), wasted=0.4) == (kind, 1)


def test_a_loop_begins_with_the_first_repetition() -> None:
    assert cause_at(of(["new", "new", "same", "same", "same", "same"])) == ("loop", 3)
    assert cause_at(of(["new", "new", "new", "same", "same", "same"])) == ("turn_budget", 5)  # two repetitions


def test_a_cycle_of_several_states_is_a_loop() -> None:
    cycle = [turn(at, state_key=f"s{at % 3}", observation=f"o{at % 3}", action=f"go {at % 3}") for at in range(9)]
    assert cause_at(episode(cycle)) == ("loop", 3)


def test_an_action_with_the_same_response_is_a_loop_although_the_state_changes() -> None:
    more = [turn(at, action="get 1 log", observation="Got 1 log", state_key=f"{at} logs") for at in range(6)]
    assert cause_at(episode(more, final_observation="Got 1 log")) == ("loop", 1)
    counted = [replace(t, observation=f"Got 1 log\n\nTurns left: {6 - at}.") for at, t in enumerate(more)]
    assert cause_at(episode(counted, final_observation="Got 1 log\n\nTurns left: 0.")) == ("loop", 1)


def test_the_same_action_with_other_results_is_no_loop() -> None:
    walk = [turn(at, action="move forward") for at in range(8)]
    assert cause_at(episode(walk)) == ("turn_budget", 7)


def test_the_most_frequent_kind_of_a_stall_is_the_cause_and_format_goes_first() -> None:
    assert cause_at(of(["new", "invalid", "malformed", "malformed"])) == ("format", 2)
    assert cause_at(of(["new", "invalid", "malformed", "invalid"])) == ("invalid_actions", 1)
    assert cause_at(of(["new"] * 5 + ["invalid", "invalid", "malformed", "malformed"])) == ("format", 7)


def test_a_repeated_invalid_action_is_invalid_and_no_loop() -> None:
    assert cause_at(episode([turn(0), *(turn(1, "invalid") for _ in range(5))])) == ("invalid_actions", 1)


def test_plans_expert_turns_and_cut_replies_do_not_count() -> None:
    expert = [turn(at, "same", reply=Reply("wait", expert=True)) for at in range(5)]
    plans = [turn(5 + at, "malformed", kind="plan", valid=True) for at in range(5)]
    cut = turn(12, "malformed", reply=Reply("thi", finish="length"))
    assert cause_at(episode([*expert, *plans, turn(10), turn(11), cut], "length")) == ("token_budget", 12)


def test_the_last_trial_explains_an_agent_that_retries() -> None:
    first = [turn(at, "malformed") for at in range(6)]
    second = [turn(at, trial=1) for at in range(6, 12)]
    assert cause_at(episode([*first, *second])) == ("turn_budget", 11)
    assert cause_at(episode([*second, *(replace(t, trial=2) for t in first)])) == ("format", 6)


def test_a_harness_whose_actions_are_not_recorded_is_judged_by_its_replies() -> None:
    turns = [turn(at, action=None, valid=True, observation="o", state_key="", reply=Reply(f"{at}")) for at in range(5)]
    assert cause_at(episode(turns)) == ("turn_budget", 4)
    again = [replace(each, reply=Reply("ls")) for each in turns]
    assert cause_at(episode(again)) == ("loop", 1)


# Budgets.


def test_budgets_are_the_cause_if_nothing_else_is() -> None:
    assert cause_at(of(["new"] * 4)) == ("turn_budget", 3)
    assert cause_at(of(["new"] * 4, stop="length")) == ("token_budget", 3)
    assert cause_at(of(["new"] + ["invalid"] * 4, stop="length")) == ("invalid_actions", 1)


def test_an_episode_without_turns_ended_at_its_budget() -> None:
    assert cause_at(of([], stop="length")) == ("token_budget", 0)
    assert cause_at(of([])) == ("turn_budget", 0)


# Distances.


def test_going_on_although_the_goal_was_one_action_away_is_over_interaction() -> None:
    found = of(["new"] * 5)
    assert cause_at(found, [3, 2, 1, 1, 1, 1]) == ("over_interaction", 2)
    assert cause_at(found, [3, 2, 2, 2, 2, 2]) == ("turn_budget", 4)
    assert cause_at(found, [3, 2, 2, 2, 2, 2], near=2) == ("over_interaction", 1)


def test_a_goal_that_came_near_in_the_last_turn_was_not_left() -> None:
    assert cause_at(of(["new"] * 3), [3, 2, 2, 1]) == ("turn_budget", 2)
    assert cause_at(of(["new"] * 3), [3, 2, 1, 1]) == ("turn_budget", 2)  # one turn left, and one needed
    assert cause_at(of(["new"] * 3), [3, 1, 2, 1]) == ("over_interaction", 1)


def test_ending_further_away_than_the_best_moment_is_moving_away() -> None:
    found = of(["new"] * 4)
    assert cause_at(found, [4, 3, 4, 4, 4]) == ("moved_away", 1)
    assert cause_at(found, [4, 3, 5, 4, 3]) == ("turn_budget", 3)  # as near again at the end
    assert cause_at(found, [None] * 5) == ("turn_budget", 3)


def test_moving_away_takes_turns_enough_for_the_goal() -> None:
    found = of(["new"] * 6)
    assert cause_at(found, [6, 5, 4, 5, 5, 5, 5]) == ("moved_away", 2)  # four turns left
    assert cause_at(found, [7, 6, 5, 6, 7, 8, 9]) == ("turn_budget", 5)  # four turns left, and five needed
    assert cause_at(found, [6, 5, 4, 4, 5, 5, 5]) == ("turn_budget", 5)  # the last moment counts


def test_moving_away_takes_several_turns_or_loses_the_goal() -> None:
    found = of(["new"] * 5)
    assert cause_at(found, [4, 3, 2, 3, 3, 3]) == ("moved_away", 2)
    assert cause_at(found, [5, 4, 3, 2, 3, 4]) == ("turn_budget", 4)
    assert cause_at(found, [5, 4, 3, 2, 3, 4], away=2) == ("moved_away", 3)
    assert cause_at(found, [4, 3, 2, 3, 3, 3], away=4) == ("turn_budget", 4)
    assert cause_at(found, [5, 4, 3, 2, 3, None]) == ("moved_away", 3)
    assert cause_at(found, [5, 4, 3, 2, 1, None]) == ("moved_away", 4)
    assert cause_at(found, [5, 4, 3, 3, 3, None]) == ("turn_budget", 4)  # one turn left, and three needed


def test_a_turn_at_the_end_of_a_long_way_is_no_moving_away() -> None:
    far = [*range(31, 14, -1), 14, 15, 15, 15]  # as on the way to a goal 14 actions away, with three turns left
    assert cause_at(of(["new"] * 20), far) == ("turn_budget", 19)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("stop", "budget"), [("length", "token_budget"), ("truncated", "turn_budget")])
def test_without_distances_causes_that_need_them_are_budgets(kind: Kind, stop: str, budget: str) -> None:
    assert without_oracle(kind, stop) == (budget if kind in ORACLE_KINDS else kind)


def test_runs_are_measured_if_all_their_failures_are_and_some_could_be_replayed() -> None:
    first, second = ("w", "t/1", 0), ("w", "t/1", 1)
    known = {first: (2, 1), second: ()}
    assert all_measured([([first, second], known), ([], {})])
    assert not all_measured([([first, second], known), ([first], {})])
    assert not all_measured([([first, second], {first: (2, 1)})])
    assert not all_measured([([second], known)])


def test_distances_of_a_replay_that_deviated_are_not_used() -> None:
    assert cause_at(of(["new"] * 4), [3, 1, 1, 1]) == ("turn_budget", 3)
    assert cause_at(of(["new"] * 4), []) == ("turn_budget", 3)


def test_procedural_failures_go_before_distances() -> None:
    assert cause_at(of(["new", *["invalid"] * 4]), [2, 1, 1, 1, 1, 1]) == ("invalid_actions", 1)


def test_causes_of_several_episodes_take_the_distances_of_each() -> None:
    first, second = of(["new"] * 3), of(["new"] * 3, sample=1)
    found = failure_causes([first, second, of([], success=True)], {("w", "t/1", 1): [2, 1, 1, 1]})
    assert [cause and cause.kind for cause in found] == ["turn_budget", "over_interaction", None]


@pytest.mark.parametrize("wrong", [{"stall": 0}, {"near": 0}, {"away": 0}, {"wasted": 0}, {"wasted": 1.5}])
def test_thresholds_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        FailureCriteria(**wrong)


# Any episode.

TURNS = st.lists(
    st.builds(
        turn,
        st.integers(0, 3),
        st.sampled_from(["new", "malformed", "invalid", "same"]),
        kind=st.sampled_from(["act", "act", "act", "plan", "reflect"]),
        trial=st.integers(0, 1),
        reply=st.builds(Reply, st.text(max_size=3), finish=st.sampled_from(["stop", "length"]), expert=st.booleans()),
    ),
    max_size=12,
)


@given(TURNS, st.sampled_from(["terminated", "truncated", "length", "failed"]), st.booleans(), st.data())
def test_every_unsuccessful_episode_has_one_cause_and_no_other_has_any(
    turns: list[Turn], stop: str, success: bool, data: st.DataObject
) -> None:
    found = episode(turns, stop, None if stop == "failed" else success)
    lengths = st.none() | st.integers(0, 4)
    distances = data.draw(st.none() | st.lists(lengths, max_size=len(turns) + 1))
    cause, plain = failure_cause(found, distances=distances), failure_cause(found)
    if stop == "failed" or success:
        assert cause is None
        assert plain is None
        return
    assert cause is not None
    assert plain is not None
    assert cause.kind in KINDS
    assert 0 <= cause.turn <= max(0, len(turns) - 1)
    assert cause.detail.endswith(".")
    assert plain.kind not in ORACLE_KINDS
    if cause.kind in ORACLE_KINDS:  # distances split up budgets, and nothing else
        assert plain.kind in ("turn_budget", "token_budget")
    else:
        assert cause == plain
    assert without_oracle(cause.kind, stop) == plain.kind
    assert (stop == "terminated" and bool(turns)) == (cause.kind in ("gave_up", "wrong_answer", "wrong_final_action"))
