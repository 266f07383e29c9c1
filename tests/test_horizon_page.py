"""Tests of the study of horizon schedules, `benchmarks/horizon`: statistics and page."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("benchmarks_path")


def module(name: str) -> Any:
    return importlib.import_module(f"horizon.{name}")


def record(arm: str = "step", seed: int = 0, success: float = 0.5, **more: Any) -> dict[str, Any]:
    """Return a record of a run whose success after training is the same in all strata."""
    curve = [{"step": step, "success": [success] * 3} for step in range(0, 61, 5)]
    part = {"success": success, "turns": 9.0, "entropy": 0.5, "advantage": -0.1, "length": 0.0, "trained": 9}
    part |= {"groups_trained": 3, "optimizer_steps": 4}
    return {
        "block": "primary",
        "regime": "paper-like",
        "arm": arm,
        "seed": seed,
        "lr": 1e-3,
        "start": f"start {seed}",
        "before": [0.4, 0.2, 0.0],
        "test": [success] * 3,
        "curve": curve,
        "updates": {name: [value] * 60 for name, value in part.items()},
        "length_update": None,
        "env_steps": 80_000,
        "tokens": 10**6,
        "trained": 10**5,
        "seconds": 30.0,
        "stages": [[0, 24]],
        "commit": "abc",
    } | more


# Statistics.


def curve(*success: float) -> list[dict[str, Any]]:
    return [{"step": 5 * n, "success": [value] * 3} for n, value in enumerate(success)]


@pytest.mark.parametrize(
    ("success", "length_update", "expected"),
    [
        ((0.5, 0.6, 0.6, 0.6, 0.6), None, None),
        ((0.5, 0.6, 0.35, 0.35, 0.35), None, 20),  # below 0.36 three times in a row
        ((0.5, 0.6, 0.35, 0.37, 0.35, 0.35), None, None),
        ((0.5, 0.6, 0.35, 0.35, 0.35), 12, 12),
        ((0.5, 0.6, 0.35, 0.35, 0.35), 40, 20),
        ((0.5, 0.5, 0.5), 3, 3),
    ],
)
def test_collapse_is_a_lasting_loss_or_replies_that_never_end(
    success: tuple[float, ...], length_update: int | None, expected: int | None
) -> None:
    found = record(curve=curve(*success), length_update=length_update)
    assert module("analysis").collapsed_at(found) == expected


def test_differences_have_students_and_bootstrap_intervals() -> None:
    analysis = module("analysis")
    found = analysis.paired({0: 0.1, 1: 0.2, 2: 0.3, 9: 1.0}, {0: 0.2, 1: 0.4, 2: 0.6, 8: 0.0})
    assert found.gains == pytest.approx((0.1, 0.2, 0.3))
    # Mean 0.2, standard error 0.1 / sqrt(3), t quantile of 2 degrees of freedom 4.3027.
    assert (found.t.difference.low, found.t.difference.high) == pytest.approx((-0.0484, 0.4484), abs=1e-4)
    assert found.t.p == pytest.approx(0.0742, abs=1e-4)
    assert found.bca.low == pytest.approx(found.t.difference.low)  # of so few seeds
    seeds = {seed: (seed / 10) ** 2 for seed in range(9)}
    skewed = analysis.paired(dict.fromkeys(seeds, 0.0), seeds)
    assert 0.0 < skewed.bca.low < skewed.bca.mean < skewed.bca.high
    assert skewed.bca.high - skewed.bca.mean > skewed.bca.mean - skewed.bca.low
    assert analysis.paired({0: 1.0}, {1: 1.0}) is None


def test_equivalence_is_the_larger_of_two_one_sided_tests() -> None:
    from scipy import stats

    analysis, gains = module("analysis"), [0.01, -0.02, 0.0, 0.03, -0.01]
    above = stats.ttest_1samp(gains, -0.05, alternative="greater").pvalue
    below = stats.ttest_1samp(gains, 0.05, alternative="less").pvalue
    assert analysis.equivalence(gains) == pytest.approx(max(above, below))
    assert analysis.equivalence(gains) < 0.01 < 0.5 < analysis.equivalence([0.2, 0.3, 0.1])
    assert math.isnan(analysis.equivalence([0.0]))
    assert (analysis.equivalence([0.02, 0.02]), analysis.equivalence([0.07, 0.07])) == (0.0, 1.0)


def test_mcnemar_compares_discordant_seeds_only() -> None:
    analysis = module("analysis")
    first = {seed: seed < 7 for seed in range(12)}
    second = {seed: seed == 0 for seed in range(12)}
    assert analysis.mcnemar(first, second) == (6, 0, pytest.approx(2 / 2**6))
    assert analysis.mcnemar(first, first) == (0, 0, 1.0)


def test_kaplan_meier_counts_runs_at_risk() -> None:
    """Of 4 runs, one has the event at 8 and one at 16: 3/4, and 3/4 x 2/3."""
    at, share = module("analysis").kaplan_meier([8, None, 16, None], 96)
    assert at[:2] == [8, 16]
    assert share[:2] == pytest.approx([0.75, 0.5])
    assert share[-1] == pytest.approx(0.5)


def primary(seeds: int, **success: float) -> list[dict[str, Any]]:
    """Return records of complete seeds: success by arm, with underscores for spaces, and some variation over seeds."""
    named = {name.replace("_", " "): value for name, value in success.items()}
    rng = np.random.default_rng(0)
    return [
        record(arm, seed, named.get(arm, 0.5) + 0.02 * float(rng.standard_normal()))
        for seed in range(1, seeds + 1)
        for arm in module("design").PRIMARY
    ]


def test_nothing_is_decided_before_the_first_look() -> None:
    analysis = module("analysis")
    assert analysis.verdicts([record(seed=0)]) is None
    found = analysis.verdicts(primary(11, step=0.9))
    assert (len(found.seeds), found.level) == (11, None)
    assert {found.decision(each) for each in found.findings} == {"undecided: 11 of 12 seeds"}


def test_hypotheses_are_decided_at_the_level_of_a_look() -> None:
    analysis = module("analysis")
    found = analysis.verdicts(primary(13, step=0.9))
    assert (found.seeds, found.level) == (tuple(range(1, 13)), 0.0052)
    decided = {each.name[:2]: found.decision(each) for each in found.findings}
    assert decided == {"H1": "supported", "H2": "not supported", "H3": "supported", "H5": "not supported"}
    found = analysis.verdicts(primary(12, step=0.1))
    decided = {each.name[:2]: found.decision(each) for each in found.findings}
    assert decided["H1"] == decided["H3"] == "contradicted: the difference has the other sign"
    even = analysis.verdicts(primary(24))
    assert {each.name[:2]: even.decision(each) for each in even.findings}["H3"].startswith("not supported; equivalent")


def test_what_the_first_look_decides_stands_at_the_second() -> None:
    analysis = module("analysis")
    records = primary(24, step=0.56)
    for each in records:
        if each["arm"] == "step" and each["seed"] > 12:
            each["test"] = [value - 0.12 for value in each["test"]]
    found = analysis.verdicts(records)
    assert (len(found.seeds), found.level) == (24, 0.048)
    decided = {each.name[:2]: found.decision(each) for each in found.findings}
    assert decided["H1"] == decided["H3"] == "supported (decided with 12 seeds)"
    assert decided["H5"] == "not supported"


def test_a_small_difference_can_be_both_significant_and_equivalent_to_none() -> None:
    analysis = module("analysis")
    records = primary(12)
    for each in records:
        if each["arm"] in ("fixed 6", "fixed 12", "fixed 24", "step"):
            each["test"] = [0.5 + 0.001 * each["seed"] * (1 + (each["arm"] == "step"))] * 3
    found = analysis.verdicts(records)
    assert found.decision(found.findings[2]) == "supported; equivalent within 0.05"


def test_the_length_bias_must_matter_more_at_the_long_horizon() -> None:
    analysis = module("analysis")

    def decide(**success: float) -> str:
        records = primary(12)
        for each in records:
            each["test"] = [value + success.get(each["arm"].replace(" ", "_"), 0.0) for value in each["test"]]
        found = analysis.verdicts(records)
        return found.decision(found.findings[-1])

    better = {"fixed_24,_length-weighted": 0.3}
    assert decide(**better) == "supported"
    assert decide(**better, **{"fixed_6,_length-weighted": 0.3}).startswith("not supported")
    worse = {"fixed_24,_length-weighted": -0.1, "fixed_6,_length-weighted": -0.3}
    assert decide(**worse) == "not supported: the differences have opposite signs"
    assert decide(**{"fixed_24,_length-weighted": -0.3}).startswith("contradicted")


def test_collapse_is_compared_by_seed() -> None:
    analysis, records = module("analysis"), primary(12)
    for each in records:
        if each["arm"] == "fixed 24":
            each["length_update"] = 50
    found = analysis.verdicts(records)
    assert found.findings[1].p == pytest.approx(2 / 2**12)
    assert found.decision(found.findings[1]) == "supported"
    assert "12 of 12 with fixed 24, 0 of 12 with step" in found.findings[1].estimate


# The page.


@pytest.mark.long
def test_an_incomplete_study_draws_no_conclusion(tmp_path: Path) -> None:
    page = module("page")
    with pytest.raises(SystemExit, match="no records of other than pilot runs"):
        page.report([record(block="pilot")], tmp_path)
    page.report([record("fixed 24"), record("step", success=0.7)], tmp_path)
    text = (tmp_path / "horizon.md").read_text()
    assert "2 of " in text
    assert "No seed has all primary arms" in text
    assert "supported" not in text
    assert "| step | 1 | 0.200 | 0.700 | +0.200 | – | 0 of 1 |" in text


@pytest.mark.long
def test_the_page_has_the_findings_and_draws_all_arms(tmp_path: Path) -> None:
    records = [*primary(12, step=0.9), *(record(arm, block="controls") for arm in module("design").CONTROLS)]
    records[0]["updates"]["advantage"][0] = None
    records[1]["start"] = "another machine's"
    module("page").report(records, tmp_path)
    text = (tmp_path / "horizon.md").read_text()
    assert "The findings are over 12 seeds with all primary arms, at the level 0.0052 of this look." in text
    assert "Seeds with warm starts of several machines, which may differ in rounding: 1." in text
    assert "| supported |" in text
    for name in ("curves", "final", "mechanism"):
        assert (tmp_path / f"horizon-{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_arms_in_textcraft_are_compared_by_length_and_by_task(tmp_path: Path) -> None:
    tasks = {"short": (3, 0.5), "long": (5, 0.0), "longest": (11, 0.25)}
    better = {"short": (3, 0.5), "long": (5, 0.25), "longest": (11, 1.0)}
    own = {"block": "TextCraft", "before": [0.4, 0.0]}
    records = [record("fixed 24"), record("step")]
    for seed, long in ((1, 0.525), (2, 0.725)):
        records.append(record("fixed 12", seed, **own, test=[0.5, 0.125], test_tasks=tasks))
        records.append(record("backward to 12", seed, **own, test=[0.5, long], test_tasks=better))
    records.append(record("backward to 12", 3, **own, test=[0.5, 0.0], test_tasks=tasks))  # has no pair
    module("page").report(records, tmp_path)
    rows = [line for line in (tmp_path / "horizon.md").read_text().splitlines() if "| backward to 12 |" in line]
    arms, strata, by_task = rows
    # Of two seeds, an interval is 12.706 standard errors to either side: here 0.05 for all tasks, 0.1 for long ones.
    assert "| 3 | 0.200 | 0.458 ± 0.187 | +0.250 (-0.385 to +0.885; BCa" in arms
    assert "| 0.000 → 0.417 | +0.500 (-0.771 to +1.771; BCa" in strata
    assert "| +0.500 (-2.677 to +3.677; BCa" in by_task  # of the tasks' 0.25 and 0.75
    assert (tmp_path / "horizon-textcraft.png").exists()
