"""Tests of the study of horizon schedules, `benchmarks/horizon`: environment, schedules, runs, statistics, page."""

from __future__ import annotations

import importlib
import json
import math
import shutil
import sys
from collections import Counter
from dataclasses import replace
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
ENV = "horizon.corridor:study/Corridor-v0"


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def module(name: str) -> Any:
    return importlib.import_module(f"horizon.{name}")


# Schedules and design.


def stages(horizon: Any, updates: int) -> list[int]:
    from agentgym_trainer.curriculum.horizon import StepOutcome, begun, next_stage

    stage = begun(horizon)
    turns = [stage.turns]
    for step in range(1, updates):
        stage = next_stage(horizon, stage, step, StepOutcome())
        turns.append(stage.turns)
    return turns


def test_controls_fall_or_are_drawn_for_each_update() -> None:
    schedules = module("schedules")
    assert stages(schedules.ReverseHorizon(every=2), 7) == [24, 24, 12, 12, 6, 6, 6]
    drawn = stages(schedules.RandomHorizon(seed=1), 300)
    assert drawn == stages(schedules.RandomHorizon(seed=1), 300) != stages(schedules.RandomHorizon(seed=2), 300)
    assert all(count > 70 for count in Counter(drawn).values())
    assert set(drawn) == {6, 12, 24}


def test_all_arms_have_valid_settings_that_a_run_folder_can_store() -> None:
    from agentgym_trainer.config import RLConfig
    from agentgym_trainer.config.serialization import from_json, to_json

    design = module("design")
    assert {*design.PRIMARY, *design.CONTROLS, *design.OTHERS} == set(design.ARMS)
    lrs = dict.fromkeys(design.TUNED, 1e-3)
    cells = [cell for block in design.BLOCKS for cell in block.cells(block.seeds[0], lrs)]
    for cell in [*cells, *design.PILOT.cells(100), *design.BABYAI_PILOT.cells(100)]:
        config = cell.config()
        assert from_json(RLConfig, json.loads(json.dumps(to_json(config)))) == config
        assert config.horizon.longest == (12 if cell.environment == "TextCraft" else 24)
        assert config.algorithm.kl.weight == design.REGIMES[cell.regime].kl or config.algorithm.kl.where == "off"
    keys = [cell.key for block in design.BLOCKS for seed in block.seeds for cell in block.cells(seed, lrs)]
    assert len(keys) == len(set(keys))


def test_learning_rates_are_those_with_the_highest_success_in_pilot_runs() -> None:
    design = module("design")
    ends = ([0.1, 0.1], [0.1, 0.2], [0.2, 0.3], [0.6, 0.1], [0.9, 0.1])
    success = dict(zip(design.LRS, ends, strict=True))
    records = [
        {
            "block": design.PILOT.name,
            "arm": arm,
            "seed": seed,
            "lr": lr,
            "curve": [{"success": [1.0]}, {"success": [values[n]]}],
        }
        for arm in design.TUNED
        for lr, values in success.items()
        for n, seed in enumerate(design.PILOT.seeds)
    ]
    assert design.PILOT.chosen(records) == dict.fromkeys(design.TUNED, design.LRS[-1])
    records[8]["curve"][-1]["success"] = [0.5]  # of the highest rate and the first arm
    assert design.PILOT.chosen(records)[design.TUNED[0]] == design.LRS[-2]
    assert design.PILOT.chosen(records[1:]) is None


def test_the_registered_plan_has_the_settings_of_the_design() -> None:
    design, analysis = module("design"), module("analysis")
    plan = " ".join((ROOT / "docs/results/horizon-plan.md").read_text().split())
    stated = [
        f"{design.UPDATES} updates of {design.TURNS} turns",
        f"every {design.EVERY} updates: {design.CORRIDOR.evaluation.tasks} dev tasks",
        f"for {design.UPDATES // 3} updates each",
        f"at least {design.UPDATES // 6} updates",
        f"imitation of {design.CORRIDOR.warm_start.episodes:,} episodes of an expert with "
        f"{design.CORRIDOR.warm_start.noise:.0%} random actions",
        f"from {', '.join(f'{lr:g}' for lr in design.LRS[:-1])} and {design.LRS[-1]:g} by pilot runs",
        f"below {analysis.LEVELS[0]} decides; at 24 seeds, one below {analysis.LEVELS[1]:.4f}",
        f"| stable | {design.REGIMES['stable'].kl} | {design.REGIMES['stable'].epochs} |",
        f"| paper-like | {design.REGIMES['paper-like'].kl} | {design.REGIMES['paper-like'].epochs} |",
        f"{design.BABYAI.warm_start.episodes:,} episodes of an expert with {design.BABYAI.warm_start.noise:.0%} random",
        f"evaluations, which are every {design.BABYAI.evaluation.every} updates",
        f"the imitation of {design.TEXTCRAFT.warm_start.episodes} episodes of the expert and one round of DAgger with "
        f"{design.TEXTCRAFT.warm_start.dagger.episodes} episodes",
        f"{design.TEXTCRAFT.steps} updates of {design.TEXTCRAFT.turns_per_step} turns, in groups of "
        f"{design.TEXTCRAFT.group_size}, at least {design.TEXTCRAFT.tasks_per_step} groups",
        f"*step to 12* (4, 8, 12 turns, for {design.IN_TEXTCRAFT['step to 12'].horizon.every} updates each)",
        f"then none, for {design.IN_TEXTCRAFT['backward to 12'].horizon.every} updates each; at most "
        f"{', '.join(map(str, design.IN_TEXTCRAFT['backward to 12'].horizon.limits))} turns of the policy)",
        f"Seeds {design.TEXTCRAFT_SEEDS[0]} to {design.TEXTCRAFT_SEEDS[-1]}. All evaluations have at most 12 turns; "
        f"{design.TEXTCRAFT.evaluation.tasks} dev tasks every {design.TEXTCRAFT.evaluation.every} updates",
        f"seeds {design.BABYAI_SEEDS[0]} to {design.BABYAI_SEEDS[-1]}",
        f"from {', '.join(f'{lr:g}' for lr in design.BABYAI_PILOT.lrs[:-1])} and {design.BABYAI_PILOT.lrs[-1]:g} by",
    ]
    assert [text for text in stated if text not in plan] == []


# Statistics.


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


# Runs.


def test_the_command_describes_its_flags_and_hides_no_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = ROOT / "benchmarks/horizon/run.py"
    for flags, code in ((["--help"], 0), (["--no-such-flag"], 2)):
        monkeypatch.setattr(sys, "argv", [str(script), *flags])
        with pytest.raises(SystemExit) as exit_info:
            module("run").main()
        assert exit_info.value.code == code
    assert "usage: " in capsys.readouterr().out
    assert not {*sys.stdlib_module_names, *packages_distributions()} & {
        file.stem for file in script.parent.glob("*.py")
    }


@pytest.mark.long
def test_a_study_that_was_interrupted_has_the_same_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One study runs through. Another is interrupted in the middle of its second run, and loses all folders."""
    design, runs, run = module("design"), module("runs"), module("run")
    cells = [design.Cell("primary", "paper-like", arm, 3, 1e-3) for arm in ("fixed 6", "step")]
    monkeypatch.setattr(runs, "batches", lambda *_: iter([cells]))

    def study(name: str, **more: Any) -> list[dict[str, Any]]:
        file = tmp_path / name / "horizon.json.gz"
        runs.run_study(file, tmp_path / name / "runs", processes=1, environments=run.QUICK, **more)
        return [{**each, "seconds": 0, "commit": ""} for each in runs.read_records(file)]

    whole = study("whole")
    assert min(each["trained"] for each in whole) > 0
    assert [each["arm"] for each in whole] == ["fixed 6", "step"]
    assert not list((tmp_path / "whole/runs").glob("primary*"))

    starts = "runs/starts"
    shutil.copytree(tmp_path / "whole" / starts, tmp_path / "interrupted" / starts)
    assert study("interrupted", most=1) == whole[:1]
    held_out = runs.play_held_out

    def interrupt(model: Path, of: Any, out: Path) -> None:
        if of.method == "step" and model.name == "model":
            raise KeyboardInterrupt
        held_out(model, of, out)

    monkeypatch.setattr(runs, "play_held_out", interrupt)
    with pytest.raises(KeyboardInterrupt):
        study("interrupted")
    monkeypatch.setattr(runs, "play_held_out", held_out)
    shutil.copytree(tmp_path / "interrupted", tmp_path / "moved", ignore=shutil.ignore_patterns("runs"))
    assert study("interrupted") == whole  # resumes the run
    assert study("moved") == whole  # begins again, with a new warm start
    assert whole[1]["start"] == whole[0]["start"]
    assert [point["step"] for point in whole[1]["curve"]] == [0, 1, 2]


@pytest.mark.long
def test_runs_in_textcraft_are_compared_by_depth_and_by_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arms are those of the plan, but the model is a tiny one. Another process adds a record meanwhile."""
    from agentgym_trainer.config import DAgger

    design, runs, run, page = module("design"), module("runs"), module("run"), module("page")
    block = next(block for block in design.BLOCKS if block.name == "TextCraft")
    arms = ("fixed 12", "backward to 12")
    monkeypatch.setattr(design, "BLOCKS", [replace(block, arms=arms, seeds=(1,))])
    file, add = tmp_path / "horizon.json.gz", runs.add_record

    def add_after_another(file: Path, new: dict[str, Any], lock: Path) -> list[dict[str, Any]]:
        if new["arm"] == arms[0]:
            runs.write_records(file, [record("fixed 24"), record("step")])
        return add(file, new, lock)

    monkeypatch.setattr(runs, "add_record", add_after_another)
    quick = run.QUICK["TextCraft"]
    quick = replace(quick, warm_start=replace(quick.warm_start, episodes=16, dagger=DAgger(rounds=1, episodes=8)))
    runs.run_study(file, tmp_path / "runs", processes=1, environments={"TextCraft": quick}, blocks=["TextCraft"])
    found = runs.read_records(file)
    assert [each["arm"] for each in found] == ["fixed 24", "step", *arms]
    assert [each["lr"] for each in found[2:]] == [6e-4, 6e-4]
    whole, backward = found[2:]
    assert len(whole["test"]) == len(whole["before"]) == len(design.IN_AND_BEYOND) == 2
    assert {turns for _, turns in whole["stages"]} == {12}
    assert {turns for _, turns in backward["stages"]} == {4}
    assert len(whole["test_tasks"]) == sum(episodes for _, episodes in whole["test_lengths"].values()) / 4 == 12
    expected = Counter(turns for turns, _ in whole["test_tasks"].values())
    assert {str(turns): 4 * tasks for turns, tasks in expected.items()} == {
        turns: episodes for turns, (_, episodes) in whole["test_lengths"].items()
    }
    assert 3 <= min(expected) <= 4 < max(expected) <= 11

    page.report(found, tmp_path)
    text = (tmp_path / "horizon.md").read_text()
    assert "| backward to 12 | 1 | " in text
    assert "5 to 11, minus fixed 12" in text
    assert "| backward to 12 | +0.000 (+0.000 to +0.000; BCa" in text
    assert (tmp_path / "horizon-textcraft.png").exists()
