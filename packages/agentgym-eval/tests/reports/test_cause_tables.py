"""Tests of failure causes in reports: shares, tables, and comparisons of runs task by task."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from agentgym_envs import Episode
from agentgym_eval.metrics.comparison import compare
from agentgym_eval.metrics.intervals import share
from agentgym_eval.metrics.summary import report
from agentgym_eval.reports import Evaluated, files, write_reports
from agentgym_eval.reports.cause_tables import causes_of, compared_causes
from agentgym_eval.reports.tables import summary
from agentgym_eval.reports.terminal import print_report, print_runs
from report_episodes import episode
from rich.console import Console


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "draw_curves", lambda *_: {})


def truncated(task: int, sample: int = 0, *, moving: bool = True) -> Episode:
    """An episode that ended at its limit, in different states or always in the same one."""
    found = episode(task, sample, False, turns=5)
    turns = tuple(replace(turn, state_key=f"{at}", observation=f"{at}") for at, turn in enumerate(found.turns))
    return replace(found, stop="truncated", turns=turns if moving else found.turns)


PLAYED = [
    episode(1, 0, True),
    truncated(1, 1),
    truncated(2, 0, moving=False),
    truncated(2, 1, moving=False),
    truncated(3),
    episode(3, 1, False),  # which the environment terminated
    episode(4, 0, None),
]
BETTER = [episode(1, 0, True), truncated(2, moving=False), episode(3, 0, True), truncated(9)]
AWAY = {("w", "t/3", 0): (2, 1, 1, 1, 1, 1)}


def test_shares_of_success_and_causes_add_up_to_one() -> None:
    found = report(PLAYED)
    assert {kind: by.episodes for kind, by in found.causes.items()} == {
        "wrong_final_action": 1,
        "loop": 2,
        "turn_budget": 2,
    }
    assert list(found.causes) == ["wrong_final_action", "loop", "turn_budget"]
    total = found.overall.success.mean + sum(by.share.mean for by in found.causes.values())
    assert total == pytest.approx(1)
    assert found.causes["loop"].share == share([0.0, 1.0, 0.0])
    assert found.causes["loop"].share.tasks == 3  # without the task whose attempt broke


def test_distances_split_up_the_budgets() -> None:
    plain, measured = report(PLAYED), report(PLAYED, distances=AWAY)
    assert {kind: by.episodes for kind, by in measured.causes.items()} == {
        "wrong_final_action": 1, "loop": 2, "over_interaction": 1, "turn_budget": 1,
    }  # fmt: skip
    assert measured.causes["loop"] == plain.causes["loop"]


def test_a_report_without_failures_has_no_causes(tmp_path: Path) -> None:
    solved = report([episode(1, 0, True), episode(2, 0, None)])
    assert solved.causes == {}
    assert list(causes_of(solved)) == []
    write_reports(tmp_path, [Evaluated("p", "w", solved)], title="t")
    assert "Why episodes failed" not in (tmp_path / "report.md").read_text()


def test_all_files_of_a_report_show_the_causes(tmp_path: Path) -> None:
    write_reports(tmp_path, [Evaluated("p", "w", report(PLAYED))], title="t")
    loop = json.loads((tmp_path / "report.json").read_text())["causes"]["loop"]
    assert (loop["episodes"], loop["share"]["mean"]) == (2, pytest.approx(1 / 3))
    section = (tmp_path / "report.md").read_text().partition("## Why episodes failed")[2].partition("##")[0]
    assert "| loop | 2 | 40.0% | 33.3%" in section
    assert "(--forensics)" in section
    html = (tmp_path / "report.html").read_text().partition("<h2>Why episodes failed</h2>")[2]
    assert '<th scope="row">loop</th><td>2</td><td>40.0%</td>' in html
    measured = next(iter(causes_of(report(PLAYED, distances=AWAY))))
    assert not any("--forensics" in note for note in measured.notes)


def test_the_terminal_shows_the_causes() -> None:
    console = Console(file=io.StringIO(), width=120)
    print_report(report(PLAYED), "t", console)
    printed = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "cause" in printed
    assert "40.0%" in printed


def test_causes_are_compared_task_by_task() -> None:
    found = compare(PLAYED, BETTER).causes
    assert list(found) == ["wrong_final_action", "loop", "turn_budget"]
    assert (found["loop"].first, found["loop"].second) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert found["turn_budget"].difference.mean == pytest.approx(-1 / 3)  # not the tasks that one of them played
    assert all(at.p_adjusted >= at.p for at in found.values())
    assert set(compare(PLAYED, BETTER, distances=(AWAY, {})).causes) == {*found, "over_interaction"}
    assert compare([episode(1, 0, True)], [episode(1, 0, True)]).causes == {}


def test_runs_stand_side_by_side_and_are_compared() -> None:
    runs = [Evaluated(name, "w", report(played)) for name, played in (("a", PLAYED), ("b", BETTER))]
    comparison = compare(PLAYED, BETTER, names=("a", "b"))
    tables = {table.title: table for table in summary(runs, [comparison])}
    side_by_side = tables["Why episodes failed"]
    assert side_by_side.columns == ("run", "wrong final action", "loop", "turn budget")
    assert [[cell.text for cell in row] for row in side_by_side.rows] == [
        ["a", "16.7%", "33.3%", "33.3%"],
        ["b", "0", "25.0%", "25.0%"],
    ]
    compared = tables["Failure causes compared task by task"]
    assert compared.columns == ("cause", "a", "b", "difference")
    assert [cell.text for cell in compared.rows[2]] == ["turn budget", "33.3%", "0.0%", "-33.3 points"]
    assert "p " in compared.rows[2][3].small
    (several,) = compared_causes([comparison, compare(BETTER, PLAYED, names=("b", "a"))])
    assert several.columns == ("second vs. first: cause", "first", "second", "difference")
    assert [cell.text for cell in several.rows[2]][:3] == ["b vs. a: turn budget", "33.3%", "0.0%"]
    console = Console(file=io.StringIO(), width=150)
    print_runs(runs, [comparison], "t", console)
    assert "-33.3 points" in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
