"""Tests of the study of horizon schedules, `benchmarks/horizon`: schedules, design and runs."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections import Counter
from dataclasses import replace
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


pytestmark = pytest.mark.usefixtures("benchmarks_path")


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
def test_runs_in_textcraft_have_the_experts_turns_and_success_by_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arms are those of the plan, but the model is a tiny one. Another process adds a record meanwhile."""
    from agentgym_trainer.config import DAgger

    design, runs, run = module("design"), module("runs"), module("run")
    block = next(block for block in design.BLOCKS if block.name == "TextCraft")
    arms = ("fixed 12", "backward to 12")
    monkeypatch.setattr(design, "BLOCKS", [replace(block, arms=arms, seeds=(1,))])
    file, add = tmp_path / "horizon.json.gz", runs.add_record

    def add_after_another(file: Path, new: dict[str, Any], lock: Path) -> list[dict[str, Any]]:
        if new["arm"] == arms[0]:
            runs.write_records(file, [{"arm": "fixed 24"}])
        return add(file, new, lock)

    monkeypatch.setattr(runs, "add_record", add_after_another)
    quick = run.QUICK["TextCraft"]
    quick = replace(quick, warm_start=replace(quick.warm_start, episodes=16, dagger=DAgger(rounds=1, episodes=8)))
    runs.run_study(file, tmp_path / "runs", processes=1, environments={"TextCraft": quick}, blocks=["TextCraft"])
    found = runs.read_records(file)
    assert [each["arm"] for each in found] == ["fixed 24", *arms]
    assert [each["lr"] for each in found[1:]] == [6e-4, 6e-4]
    whole, backward = found[1:]
    assert len(whole["test"]) == len(whole["before"]) == len(design.IN_AND_BEYOND) == 2
    assert {turns for _, turns in whole["stages"]} == {12}
    assert {turns for _, turns in backward["stages"]} == {4}
    assert len(whole["test_tasks"]) == sum(episodes for _, episodes in whole["test_lengths"].values()) / 4 == 12
    expected = Counter(turns for turns, _ in whole["test_tasks"].values())
    assert {str(turns): 4 * tasks for turns, tasks in expected.items()} == {
        turns: episodes for turns, (_, episodes) in whole["test_lengths"].items()
    }
    assert 3 <= min(expected) <= 4 < max(expected) <= 11
