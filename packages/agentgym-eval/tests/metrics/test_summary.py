from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from io import StringIO
from itertools import combinations

import pytest
from agentgym_envs import Episode, Reply, Sample, Turn
from agentgym_eval.metrics.summary import Report, report
from agentgym_eval.reports.terminal import print_report
from rich.console import Console

pytestmark = pytest.mark.quick


def episode(task: int, sample: int, success: bool | None, *, category: str = "a", turns: int = 2) -> Episode:
    failed = success is None
    turn = Turn("see", Reply("do"), "do", valid=True, reward=0.0, state_key="s")
    return Episode(
        env="w", task_id=f"t/{task}", split="test", category=category, difficulty=task % 2, policy="p", sample=sample,
        instructions="", turns=(turn,) * turns, final_observation="", stop="failed" if failed else "terminated",
        score=None if failed else float(success), success=success, error="Fault: it [broke]" if failed else None,
    )  # fmt: skip


MIXED = [
    *(episode(0, s, s < 2) for s in range(4)),
    *(episode(1, s, s < 1, category="b", turns=6) for s in range(3)),
    episode(1, 3, None, category="b", turns=1),
    *(episode(2, s, None, category="c") for s in range(4)),
]


def printed(result: Report, width: int = 120) -> str:
    text = StringIO()
    print_report(result, "p in [w]", Console(width=width, file=text))
    return text.getvalue()


def test_failed_episodes_are_counted_and_in_no_mean() -> None:
    overall = report(MIXED, ks=(1, 4)).overall
    assert (overall.tasks, overall.episodes, overall.failed) == (3, 12, 5)
    assert overall.success.mean == pytest.approx((2 / 4 + 1 / 3) / 2)
    assert [overall.score.mean, overall.pass_at[1].mean] == pytest.approx([overall.success.mean] * 2)
    assert overall.turns.mean == 4.0
    assert overall.success.tasks == 2


def test_a_task_with_too_few_attempts_is_left_out_of_that_k_and_counted() -> None:
    overall = report(MIXED, ks=(1, 2, 4)).overall
    assert [overall.left_out(k) for k in (1, 2, 4)] == [1, 1, 2]
    assert overall.pass_at[4].mean == 1.0
    pairs = [any(pair) for pair in combinations([True, False, False], 2)]
    assert overall.pass_at[2].mean == pytest.approx((5 / 6 + sum(pairs) / len(pairs)) / 2)


def test_pass_hat_is_the_share_of_subsets_that_succeed_throughout() -> None:
    overall = report(MIXED, ks=(1, 2, 4)).overall
    assert overall.pass_hat[1] == overall.pass_at[1]
    pairs = [all(pair) for pair in combinations([True, True, False, False], 2)]
    assert overall.pass_hat[2].mean == pytest.approx(sum(pairs) / len(pairs) / 2)  # the other task never does it twice
    assert (overall.pass_hat[4].mean, overall.pass_hat[4].tasks) == (0.0, 1)


def test_success_against_allowed_turns_rises_to_the_success() -> None:
    episodes = [
        episode(0, 0, success=True, turns=2), episode(0, 1, success=True, turns=5),
        episode(1, 0, success=True, turns=3), episode(1, 1, success=False, turns=1), episode(1, 2, None, turns=9),
    ]  # fmt: skip
    result = report(episodes)
    assert {turns: at.mean for turns, at in result.by_turns.items()} == {1: 0, 2: 0.25, 3: 0.5, 4: 0.5, 5: 0.75}
    assert result.by_turns[5] == replace(result.overall.success, percentiles=None)
    assert report([]).by_turns == {}


def test_tokens_are_counted_where_they_were_kept() -> None:
    def said(played: Episode, *lengths: int) -> Episode:
        replies = [Reply("do", sample=Sample((1,), (7,) * n, (0.0,) * n)) for n in lengths]
        return replace(played, turns=tuple(replace(played.turns[0], reply=reply) for reply in replies))

    known = [said(episode(0, 0, success=True), 3, 4), said(episode(0, 1, success=False), 1)]
    tokens = report([*known, episode(0, 2, success=True), episode(1, 0, success=True)]).overall.tokens
    assert (tokens.mean, tokens.tasks) == (4.0, 1)
    assert math.isnan(report(MIXED).overall.tokens.mean)
    assert "tokens" in printed(report(known))
    assert "tokens" not in printed(report(MIXED))


def test_worlds_have_figures_of_their_own() -> None:
    result = report([*MIXED, *(replace(e, env="v", task_id=f"v/{e.task_id}") for e in MIXED[:4])])
    assert list(result.by_world) == ["v", "w"]
    assert result.by_world["w"].to_dict() == report(MIXED).overall.to_dict()
    assert result.by_world["v"].stops == {"terminated": 4}
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["by_world"]["v"]["success"]["mean"] == 0.5


def test_groups_add_up_and_keep_their_own_failures() -> None:
    result = report(MIXED, ks=(1,))
    assert list(result.by_category) == ["a", "b", "c"]
    assert list(result.by_difficulty) == [0, 1]
    for groups in (result.by_category, result.by_difficulty):
        assert sum(group.episodes for group in groups.values()) == 12
        assert sum(group.failed for group in groups.values()) == 5
    assert result.by_category["b"].success.mean == pytest.approx(1 / 3)
    assert result.overall.stops == {"failed": 5, "terminated": 7}
    assert result.faults == {"Fault: it [broke]": 5}


def test_neither_the_order_of_episodes_nor_the_other_figures_change_a_figure() -> None:
    assert report(MIXED[::-1], ks=(1, 2), seed=4) == report(MIXED, ks=(1, 2), seed=4)
    assert report(MIXED, ks=(2,)).overall.pass_at[2] == report(MIXED, ks=(1, 2, 4)).overall.pass_at[2]


def test_nothing_scored_is_nan_here_and_null_in_json() -> None:
    result = report([episode(0, 0, None)], ks=(1,))
    assert math.isnan(result.overall.success.mean)
    written = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert written["overall"]["success"] == {"mean": None, "low": None, "high": None, "tasks": 0}
    assert written["overall"]["pass_at"]["1"]["left_out"] == 1
    assert report([]).to_dict()["overall"]["episodes"] == 0


def test_the_table_shows_every_group_failures_and_what_was_left_out() -> None:
    text = printed(report(MIXED, ks=(1, 4)))
    for part in (
        "p in [w]",
        "all",
        "difficulty 1",
        "41.7%",
        "pass@4 and pass^4 exclude 2 tasks with fewer than 4 attempts that did not fail",
        "5 episodes failed: Fault: it [broke]",
        "pass^4",
        "Episodes by stop reason: 5 failed, 7 terminated.",
    ):
        assert part in text


def test_difficulties_that_are_the_categories_under_other_names_are_shown_once() -> None:
    same = [episode(task, s, s < task, category="ab"[task % 2]) for task in range(4) for s in range(2)]
    other = [episode(task, s, s < task, category="ab"[task // 2]) for task in range(4) for s in range(2)]
    for episodes, shown in ((same, False), (other, True)):
        text = printed(report(episodes))
        assert ("difficulty" in text) is shown


def test_a_table_has_no_room_for_dozens_of_difficulties() -> None:
    many = [replace(episode(i, 0, success=True), difficulty=i) for i in range(30)]
    text = printed(report(many))
    assert "difficulty 3" not in text
    assert "The 30 difficulties are too many for a table" in text


def test_a_narrow_terminal_gets_two_tables_and_every_digit() -> None:
    result = report(MIXED, ks=(1, 2, 4))
    wide, narrow = printed(result), printed(result, width=80)
    assert wide.count("all ") == 1
    assert narrow.count("all ") == 2
    assert "…" not in narrow
    words = [{word for word in text.split() if not word.startswith("─")} for text in (wide, narrow)]
    assert words[0] == words[1]


@pytest.mark.parametrize("width", [80, 60])
def test_nothing_is_cut_on_a_narrow_terminal(width: int) -> None:
    name = "a category with a name longer than half the width of a terminal"
    episodes = [
        replace(episode(task, s, (task + s) % 3 > 0, category=f"c{task}", turns=30 + task), difficulty=10 + task)
        for task in range(6)
        for s in range(8)
    ]
    result = report(
        [*episodes, episode(9, 0, True, category=name), episode(10, 0, True, category=name)], ks=(1, 2, 4, 8)
    )
    shown = printed(result, width)
    assert "…" not in shown
    for difficulty in range(10, 16):
        assert re.search(rf"^ *difficulty {difficulty} ", shown, re.MULTILINE)
    wide = printed(result, 400)
    for figure in re.findall(r"\d+\.\d+–\d+\.\d+|\d+\.\d+%|pass.\d", wide):
        assert figure in shown
    first = ["".join(line[: width // 2].split()) for line in shown.splitlines()]
    assert "".join(name.split()) in "".join(first)


def test_tasks_of_the_same_id_in_two_environments_are_two() -> None:
    there = [episode(0, 0, success=True), episode(0, 1, success=True), episode(0, 2, success=True)]
    elsewhere = [replace(episode(0, 0, success=False), env="v")]
    overall = report([*there, *elsewhere]).overall
    assert (overall.tasks, overall.success.tasks) == (2, 2)
    assert overall.success.mean == 0.5


def test_intervals_are_over_the_clusters_of_tasks_and_say_so() -> None:
    alike = [replace(episode(task, 0, task // 5 % 2 == 0), cluster=f"k{task // 5}") for task in range(60)]
    result = report(alike)
    apart = report([replace(one, cluster="") for one in alike])
    assert (result.overall.success.clusters, apart.overall.success.clusters) == (12, None)
    assert result.overall.icc == 1.0
    assert math.isnan(apart.overall.icc)
    assert apart.to_dict()["overall"]["icc"] is None
    width = result.overall.success.high - result.overall.success.low
    assert width > 1.8 * (apart.overall.success.high - apart.overall.success.low)
    said = "The 60 tasks form 12 clusters; intervals are over clusters. The intra-class correlation of success"
    assert said in " ".join(printed(result).split())
    assert "clusters" not in printed(apart)


def test_few_clusters_are_taken_as_given_and_it_is_said() -> None:
    few = [replace(episode(task, 0, task // 5 % 2 == 0), cluster=f"k{task // 5}") for task in range(45)]
    result, apart = report(few), report([replace(one, cluster="") for one in few])
    assert result.overall.success == apart.overall.success
    assert result.overall.icc == 1.0
    said = "The 45 tasks form fewer than 10 clusters, so intervals are over tasks"
    assert said in " ".join(printed(result).split())
