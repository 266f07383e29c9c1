"""Ways of training compared over seeds: against scipy's paired test, in the command, and where seeds are missing."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from agentgym_envs import Episode, Reply, Turn
from agentgym_eval.cli.main import compare as compare_runs
from agentgym_eval.metrics.comparison import compare
from agentgym_eval.metrics.seeds import across_seeds, over_seeds
from scipy import stats

pytestmark = pytest.mark.quick


def played(rate: float, name: str, *, tasks: int = 20, world: str = "w") -> list[Episode]:
    """The share `rate` of the tasks succeeds, in one attempt at each."""
    turn = Turn("see", Reply("do"), "do", valid=True, reward=0.0, state_key="s")
    return [
        Episode(
            env=world, task_id=f"t/{task}", split="test", category="a", difficulty=0, policy=name, sample=0,
            instructions="", turns=(turn,), final_observation="", stop="terminated",
            score=float(task < rate * tasks), success=task < rate * tasks,
        )
        for task in range(tasks)
    ]  # fmt: skip


def written(folder: Path, name: str, rates: list[float], *, world: str = "w") -> list[str]:
    files: list[str] = []
    for seed, rate in enumerate(rates):
        path = folder / f"{name}-{seed}.jsonl"
        path.write_text("".join(f"{e.to_json()}\n" for e in played(rate, f"{name}-{seed}", world=world)))
        files.append(str(path))
    return files


def test_over_seeds_it_is_students_paired_test() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.random(5), rng.random(5) + 0.3
    found, expected = over_seeds(first.tolist(), second.tolist()), stats.ttest_rel(second, first)
    assert found.difference.mean == pytest.approx(float(np.mean(second - first)))
    assert found.p == pytest.approx(float(expected.pvalue))
    interval = expected.confidence_interval(0.95)
    assert (found.difference.low, found.difference.high) == pytest.approx((interval.low, interval.high))


def test_what_is_detectable_is_shown_four_times_in_five() -> None:
    rng, error = np.random.default_rng(1), 0.1
    shown = list[bool]()
    for _ in range(2_000):
        gains = rng.normal(0.0, error, 5)
        least = (stats.t.ppf(0.975, 4) + stats.t.ppf(0.8, 4)) * error / math.sqrt(5)
        shown.append(over_seeds([0.0] * 5, (gains + least).tolist()).p < 0.05)
    assert np.mean(shown) == pytest.approx(0.8, abs=0.05)


def test_one_seed_tells_a_difference_and_nothing_about_others() -> None:
    found = over_seeds([0.25], [0.5])
    assert found.difference.mean == 0.25
    assert all(map(math.isnan, (found.difference.low, found.p, found.detectable)))


def test_seeds_that_agree_to_the_last_digit_leave_no_doubt() -> None:
    assert over_seeds([0.2, 0.2], [0.7, 0.7]).p == 0.0
    assert over_seeds([0.2, 0.2], [0.2, 0.2]).p == 1.0


def test_comparisons_of_each_seed_come_to_one_over_seeds() -> None:
    rates = [(0.3, 0.5), (0.4, 0.45), (0.2, 0.5)]
    pairs = [
        compare(played(a, "a"), played(b, "b"), names=(f"a-{seed}", f"b-{seed}")) for seed, (a, b) in enumerate(rates)
    ]
    found = across_seeds(pairs)
    assert (found.first, found.second, found.seeds) == ("a-0 and 2 more", "b-0 and 2 more", 3)
    assert found.success.difference.mean == pytest.approx(0.55 / 3)
    assert found.success == over_seeds(*zip(*rates, strict=True), tasks=20)


def test_the_command_compares_over_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = written(tmp_path, "a", [0.3, 0.4, 0.2]), written(tmp_path, "b", [0.5, 0.45, 0.5])
    out = tmp_path / "compared"
    assert compare_runs([*first, "--against", *second, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "Compared task by task" not in said  # tables on a terminal have no headings
    assert "b-0 and 2 more vs. a-0 and 2 more" in said
    assert "Student's paired test over training seeds" in said
    record = json.loads((out / "report.json").read_text())
    assert [(at["first"], at["second"]) for at in record["comparisons"]] == [(f"a-{i}", f"b-{i}") for i in range(3)]
    assert all(at["success"]["p"] == at["success"]["p_adjusted"] for at in record["comparisons"])
    assert record["across_seeds"]["seeds"] == 3
    assert record["across_seeds"]["success"]["difference"]["mean"] == pytest.approx(0.55 / 3)
    for page in ("report.md", "report.html"):
        assert "Compared seed by seed" in (out / page).read_text()


def test_halves_that_do_not_match_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = written(tmp_path, "a", [0.3, 0.4]), written(tmp_path, "b", [0.5, 0.45])
    elsewhere = written(tmp_path, "c", [0.5, 0.45], world="other")
    for runs, against in ((first, second[:1]), (first[:1], second[:1]), (first, elsewhere)):
        assert compare_runs([*runs, "--against", *against]) == 2
        assert (
            "--against takes as many runs as are named before it, at least two, in one environment"
            in capsys.readouterr().err
        )
