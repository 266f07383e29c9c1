"""Tests of comparisons over training seeds, in the library and in `compare`."""

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


def episodes_with_rate(rate: float, name: str, *, tasks: int = 20, env: str = "w") -> list[Episode]:
    """Return one attempt per task, of which the share `rate` succeeds."""
    turn = Turn("see", Reply("do"), "do", valid=True, reward=0.0, state_key="s")
    return [
        Episode(
            env=env, task_id=f"t/{task}", split="test", category="a", difficulty=0, policy=name, sample=0,
            instructions="", turns=(turn,), final_observation="", stop="terminated",
            score=float(task < rate * tasks), success=task < rate * tasks,
        )
        for task in range(tasks)
    ]  # fmt: skip


def write_runs(folder: Path, name: str, rates: list[float], *, env: str = "w") -> list[str]:
    files: list[str] = []
    for seed, rate in enumerate(rates):
        path = folder / f"{name}-{seed}.jsonl"
        path.write_text("".join(f"{e.to_json()}\n" for e in episodes_with_rate(rate, f"{name}-{seed}", env=env)))
        files.append(str(path))
    return files


def test_over_seeds_is_students_paired_t_test() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.random(5), rng.random(5) + 0.3
    comparison, expected = over_seeds(first.tolist(), second.tolist()), stats.ttest_rel(second, first)
    assert comparison.difference.mean == pytest.approx(float(np.mean(second - first)))
    assert comparison.p == pytest.approx(float(expected.pvalue))
    interval = expected.confidence_interval(0.95)
    assert (comparison.difference.low, comparison.difference.high) == pytest.approx((interval.low, interval.high))


def test_detectable_difference_is_significant_in_80_percent_of_cases() -> None:
    rng, error = np.random.default_rng(1), 0.1
    significant = list[bool]()
    for _ in range(2_000):
        gains = rng.normal(0.0, error, 5)
        detectable = (stats.t.ppf(0.975, 4) + stats.t.ppf(0.8, 4)) * error / math.sqrt(5)
        significant.append(over_seeds([0.0] * 5, (gains + detectable).tolist()).p < 0.05)
    assert np.mean(significant) == pytest.approx(0.8, abs=0.05)


def test_single_seed_gives_a_difference_without_an_interval() -> None:
    comparison = over_seeds([0.25], [0.5])
    assert comparison.difference.mean == 0.25
    assert all(map(math.isnan, (comparison.difference.low, comparison.p, comparison.detectable)))


def test_variation_of_identical_differences_is_unknown() -> None:
    same = over_seeds([0.2, 0.2], [0.7, 0.7])
    assert all(map(math.isnan, (same.p, same.difference.low, same.difference.high, same.detectable)))
    assert over_seeds([0.2, 0.2], [0.2, 0.2]).p == 1.0


def test_comparisons_of_seeds_are_combined() -> None:
    rates = [(0.3, 0.5), (0.4, 0.45), (0.2, 0.5)]
    pairs = [
        compare(episodes_with_rate(a, "a"), episodes_with_rate(b, "b"), names=(f"a-{seed}", f"b-{seed}"))
        for seed, (a, b) in enumerate(rates)
    ]
    comparison = across_seeds(pairs)
    assert (comparison.first, comparison.second, comparison.seeds) == ("a-0 and 2 more", "b-0 and 2 more", 3)
    assert comparison.success.difference.mean == pytest.approx(0.55 / 3)
    assert comparison.success == over_seeds(*zip(*rates, strict=True), tasks=20)


def test_compare_command_compares_over_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = write_runs(tmp_path, "a", [0.3, 0.4, 0.2]), write_runs(tmp_path, "b", [0.5, 0.45, 0.5])
    out = tmp_path / "compared"
    assert compare_runs([*first, "--against", *second, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "Compared task by task" not in printed  # tables on a terminal have no headings
    assert "b-0 and 2 more vs. a-0 and 2 more" in printed
    assert "Student's paired test over training seeds" in printed
    record = json.loads((out / "report.json").read_text())
    assert [(pair["first"], pair["second"]) for pair in record["comparisons"]] == [
        (f"a-{i}", f"b-{i}") for i in range(3)
    ]
    assert all(pair["success"]["p"] == pair["success"]["p_adjusted"] for pair in record["comparisons"])
    assert record["across_seeds"]["seeds"] == 3
    assert record["across_seeds"]["success"]["difference"]["mean"] == pytest.approx(0.55 / 3)
    for page in ("report.md", "report.html"):
        assert "Compared seed by seed" in (out / page).read_text()


def test_compare_rejects_mismatched_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = write_runs(tmp_path, "a", [0.3, 0.4]), write_runs(tmp_path, "b", [0.5, 0.45])
    other_env = write_runs(tmp_path, "c", [0.5, 0.45], env="other")
    for runs, against in ((first, second[:1]), (first[:1], second[:1]), (first, other_env)):
        assert compare_runs([*runs, "--against", *against]) == 2
        assert (
            "--against takes as many runs as are named before it, at least two, in one environment"
            in capsys.readouterr().err
        )
