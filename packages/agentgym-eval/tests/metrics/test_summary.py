"""Tests of the metrics of a run and of the tables that are printed for them."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from io import StringIO
from itertools import combinations

import pytest
from agentgym_envs import Episode, Reply, Sample, Turn
from agentgym_envs.episodes.episode import TokenUsage
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


def test_failed_episodes_are_counted_but_excluded_from_means() -> None:
    overall = report(MIXED, ks=(1, 4)).overall
    assert (overall.tasks, overall.episodes, overall.failed) == (3, 12, 5)
    assert overall.success.mean == pytest.approx((2 / 4 + 1 / 3) / 2)
    assert [overall.score.mean, overall.pass_at[1].mean] == pytest.approx([overall.success.mean] * 2)
    assert overall.turns.mean == 4.0
    assert overall.success.tasks == 2


def test_tasks_with_fewer_than_k_attempts_are_excluded_and_counted() -> None:
    overall = report(MIXED, ks=(1, 2, 4)).overall
    assert [overall.left_out(k) for k in (1, 2, 4)] == [1, 1, 2]
    assert overall.pass_at[4].mean == 1.0
    pairs = [any(pair) for pair in combinations([True, False, False], 2)]
    assert overall.pass_at[2].mean == pytest.approx((5 / 6 + sum(pairs) / len(pairs)) / 2)


def test_pass_hat_k_is_the_share_of_subsets_without_failures() -> None:
    overall = report(MIXED, ks=(1, 2, 4)).overall
    assert overall.pass_hat[1] == overall.pass_at[1]
    pairs = [all(pair) for pair in combinations([True, True, False, False], 2)]
    assert overall.pass_hat[2].mean == pytest.approx(sum(pairs) / len(pairs) / 2)  # the other task never succeeds twice
    assert (overall.pass_hat[4].mean, overall.pass_hat[4].tasks) == (0.0, 1)


def test_success_by_allowed_turns_rises_to_overall_success() -> None:
    episodes = [
        episode(0, 0, success=True, turns=2), episode(0, 1, success=True, turns=5),
        episode(1, 0, success=True, turns=3), episode(1, 1, success=False, turns=1), episode(1, 2, None, turns=9),
    ]  # fmt: skip
    result = report(episodes)
    assert {turns: at.mean for turns, at in result.by_turns.items()} == {1: 0, 2: 0.25, 3: 0.5, 4: 0.5, 5: 0.75}
    assert result.by_turns[5] == replace(result.overall.success, percentiles=None)
    assert report([]).by_turns == {}


def test_pass_at_k_by_allowed_turns() -> None:
    result = report(MIXED, ks=(1, 2, 4, 8))
    passes = result.pass_by_turns
    for k in (1, 2, 4):
        assert passes[k][max(passes[k])] == pytest.approx(result.overall.pass_at[k].mean)
        assert list(passes[k].values()) == sorted(passes[k].values())
    assert passes[8] == {}
    assert list(passes[1].values()) == pytest.approx([at.mean for at in result.by_turns.values()])
    late = [
        episode(0, 0, success=True, turns=2),
        episode(0, 1, success=False, turns=4),
        episode(0, 2, success=True, turns=3),
    ]
    assert report(late, ks=(2,)).pass_by_turns[2] == pytest.approx({1: 0, 2: 2 / 3, 3: 1, 4: 1})
    assert report([], ks=(2,)).pass_by_turns == {2: {}}


def test_tokens_are_counted_in_episodes_with_samples_or_usage() -> None:
    def with_tokens(played: Episode, *lengths: int) -> Episode:
        replies = [Reply("do", sample=Sample((1,), (7,) * n, (0.0,) * n)) for n in lengths]
        return replace(played, turns=tuple(replace(played.turns[0], reply=reply) for reply in replies))

    known = [with_tokens(episode(0, 0, success=True), 3, 4), with_tokens(episode(0, 1, success=False), 1)]
    tokens = report([*known, episode(0, 2, success=True), episode(1, 0, success=True)]).overall.tokens
    assert (tokens.mean, tokens.tasks) == (4.0, 1)
    counted = Reply("do", usage=TokenUsage(prompt_tokens=50, completion_tokens=6))
    by_endpoint = replace(known[0], turns=(replace(known[0].turns[0], reply=counted),) * 2)
    assert report([by_endpoint]).overall.tokens.mean == 12
    assert "tokens" in printed(report([by_endpoint]))
    assert math.isnan(report(MIXED).overall.tokens.mean)
    assert "tokens" in printed(report(known))
    assert "tokens" not in printed(report(MIXED))


def test_each_environment_has_its_own_metrics() -> None:
    result = report([*MIXED, *(replace(e, env="v", task_id=f"v/{e.task_id}") for e in MIXED[:4])])
    assert list(result.by_world) == ["v", "w"]
    assert result.by_world["w"].to_dict() == report(MIXED).overall.to_dict()
    assert result.by_world["v"].stops == {"terminated": 4}
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["by_world"]["v"]["success"]["mean"] == 0.5


def test_metrics_of_categories_and_difficulties_add_up() -> None:
    result = report(MIXED, ks=(1,))
    assert list(result.by_category) == ["a", "b", "c"]
    assert list(result.by_difficulty) == [0, 1]
    for groups in (result.by_category, result.by_difficulty):
        assert sum(group.episodes for group in groups.values()) == 12
        assert sum(group.failed for group in groups.values()) == 5
    assert result.by_category["b"].success.mean == pytest.approx(1 / 3)
    assert result.overall.stops == {"failed": 5, "terminated": 7}
    assert result.faults == {"Fault: it [broke]": 5}


def test_metrics_do_not_depend_on_episode_order_or_other_ks() -> None:
    assert report(MIXED[::-1], ks=(1, 2), seed=4) == report(MIXED, ks=(1, 2), seed=4)
    assert report(MIXED, ks=(2,)).overall.pass_at[2] == report(MIXED, ks=(1, 2, 4)).overall.pass_at[2]


def test_missing_scores_are_nan_and_null_in_json() -> None:
    result = report([episode(0, 0, None)], ks=(1,))
    assert math.isnan(result.overall.success.mean)
    record = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert record["overall"]["success"] == {"mean": None, "low": None, "high": None, "tasks": 0}
    assert record["overall"]["pass_at"]["1"]["left_out"] == 1
    assert report([]).to_dict()["overall"]["episodes"] == 0


def test_table_shows_groups_failures_and_exclusions() -> None:
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


def test_difficulties_equal_to_categories_are_not_shown() -> None:
    equal = [episode(task, s, s < task, category="ab"[task % 2]) for task in range(4) for s in range(2)]
    different = [episode(task, s, s < task, category="ab"[task // 2]) for task in range(4) for s in range(2)]
    for episodes, shown in ((equal, False), (different, True)):
        text = printed(report(episodes))
        assert ("difficulty" in text) is shown


def test_table_omits_too_many_difficulties() -> None:
    many = [replace(episode(i, 0, success=True), difficulty=i) for i in range(30)]
    text = printed(report(many))
    assert "difficulty 3" not in text
    assert "The 30 difficulties are too many for a table" in text


def test_narrow_terminal_splits_the_table_without_loss() -> None:
    result = report(MIXED, ks=(1, 2, 4))
    wide, narrow = printed(result), printed(result, width=80)
    assert wide.count("all ") == 1
    assert narrow.count("all ") == 2
    assert "…" not in narrow
    word_sets = [{word for word in text.split() if not word.startswith("─")} for text in (wide, narrow)]
    assert word_sets[0] == word_sets[1]


@pytest.mark.parametrize("width", [80, 60])
def test_narrow_terminal_truncates_nothing(width: int) -> None:
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


def test_same_task_id_in_two_environments_counts_as_two_tasks() -> None:
    first_env = [episode(0, 0, success=True), episode(0, 1, success=True), episode(0, 2, success=True, turns=3)]
    second_env = [replace(episode(0, 0, success=False), env="v")]
    overall = report([*first_env, *second_env]).overall
    assert (overall.tasks, overall.success.tasks) == (2, 2)
    assert overall.success.mean == 0.5


def test_intervals_are_over_clusters_of_tasks() -> None:
    clustered = [replace(episode(task, 0, task // 5 % 2 == 0), cluster=f"k{task // 5}") for task in range(60)]
    result = report(clustered)
    unclustered = report([replace(e, cluster="") for e in clustered])
    assert (result.overall.success.clusters, unclustered.overall.success.clusters) == (12, None)
    assert result.overall.icc == 1.0
    assert math.isnan(unclustered.overall.icc)
    assert unclustered.to_dict()["overall"]["icc"] is None
    width = result.overall.success.high - result.overall.success.low
    assert width > 1.8 * (unclustered.overall.success.high - unclustered.overall.success.low)
    note = "The 60 tasks form 12 clusters; intervals are over clusters. The intra-class correlation of success"
    assert note in " ".join(printed(result).split())
    assert "clusters" not in printed(unclustered)


def test_fewer_than_10_clusters_are_ignored_with_a_note() -> None:
    few = [replace(episode(task, 0, task // 5 % 2 == 0), cluster=f"k{task // 5}") for task in range(45)]
    result, unclustered = report(few), report([replace(e, cluster="") for e in few])
    assert result.overall.success == unclustered.overall.success
    assert result.overall.icc == 1.0
    note = "The 45 tasks form fewer than 10 clusters, so intervals are over tasks"
    assert note in " ".join(printed(result).split())
