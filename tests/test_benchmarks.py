"""Tests of the command lines of the benchmark scripts, and of `benchmarks/harness.py`."""

from __future__ import annotations

import argparse
import importlib
import json
import operator
import os
import sys
from dataclasses import dataclass
from functools import partial
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = sorted(file.stem for file in FOLDER.glob("*.py") if 'if __name__ == "__main__":' in file.read_text())


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("harness")


def run_script(name: str, flag: str, monkeypatch: pytest.MonkeyPatch) -> object:
    """Run a script in this process, and return its exit code."""
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module(name)
    monkeypatch.setattr(sys, "argv", [str(FOLDER / f"{name}.py"), flag])
    with pytest.raises(SystemExit) as exit_info:
        module.main()
    return exit_info.value.code


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_describe_their_flags_and_reject_others(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_script(name, "--help", monkeypatch) == 0
    assert "usage: " in capsys.readouterr().out
    assert run_script(name, "--no-such-flag", monkeypatch) == 2
    assert "--no-such-flag" in capsys.readouterr().err


@pytest.mark.long
def test_every_method_of_the_smollm2_study_is_a_valid_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentgym_trainer.cli import parse_config

    monkeypatch.syspath_prepend(str(FOLDER))
    study = importlib.import_module("smollm2")
    for world in study.WORLDS:
        for method in (*study.METHODS, *study.FROM_DATA):
            cell = study.Cell(world, method, 1, tmp_path)
            config = parse_config(study.arguments_of(cell))
            assert (config.seed, config.threads, config.world) == (1, 1, cell.config.world)
            starts_as_rl = method in (study.RECIPE, study.CLONING, study.DAGGER)
            assert config.model == ("smollm2" if starts_as_rl else str(cell.start))


def test_no_module_hides_a_package() -> None:
    """A script's folder is the first on its path, so its modules are imported in place of packages of the same name."""
    optional = {"coverage"}  # which numba imports if it exists
    packages = {*sys.stdlib_module_names, *packages_distributions(), *optional}
    assert not packages & {file.stem for file in FOLDER.glob("*.py")}


def test_common_options_have_the_scripts_defaults(harness: Any) -> None:
    parser = harness.arguments("First line.\n\nMore.", "out", "quick", "seconds", seconds=2.0)
    settings = parser.parse_args([])
    assert (settings.out, settings.quick, settings.seconds) == (None, False, 2.0)
    assert parser.description == "First line."


def test_a_study_reports_only_what_is_recorded(harness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quick = argparse.Namespace(quick=True, out=tmp_path / "runs", report=None)
    assert harness.study_records(quick, "some") == (tmp_path / "runs/some.json", [])
    whole = argparse.Namespace(quick=False, out=tmp_path / "runs", report=tmp_path)
    with pytest.raises(SystemExit, match=r"some\.json has no records; run the script without --report first"):
        harness.study_records(whole, "some")
    harness.write_json(tmp_path / "docs/results/some.json", [{"seed": 0}])
    assert harness.study_records(whole, "some") == (Path("docs/results/some.json"), [{"seed": 0}])


def test_a_study_has_a_folder_of_its_name_and_its_command(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks/length_bias.py", "--seeds", "0", "1"])
    settings, command = harness.study_arguments("Study.")
    assert settings.out == Path("runs/length_bias")
    assert settings.report is None
    assert command == "uv run python benchmarks/length_bias.py --seeds 0 1"


def test_only_complete_new_seeds_confirm_a_hypothesis(harness: Any) -> None:
    study = importlib.import_module("length_bias")
    records = [
        {"world": "long", "seed": seed, "arm": arm, "kl": kl, "success": success + kl}
        for seed in range(4)
        for arm, success in ((study.PLAIN, 0.5), (study.WHITENED, 0.6 + seed / 10))
        for kl in study.KLS
    ]
    assert study.confirmed(records[:-7]) == (0, None)  # seeds 0 and 1, and a part of seed 2
    seeds, found = study.confirmed(records[:-1])
    assert (seeds, found.difference.mean) == (1, pytest.approx(0.3))
    assert study.confirmed(records)[1].difference.mean == pytest.approx(0.35)


def test_isolated_calls_run_in_another_process(harness: Any) -> None:
    assert harness.isolated(os.getpid) != os.getpid()


def test_parallel_tasks_report_progress_and_return_results_in_order(
    harness: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert harness.run_parallel([partial(operator.add, n, 1) for n in (1, 2, 3)], 2) == [2, 3, 4]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["1/3", "2/3", "3/3"]


def test_failed_calls_are_not_timed(harness: Any) -> None:
    timer = harness.CallTimer()
    assert timer("add", operator.add, 1, 2) == 3
    with pytest.raises(ZeroDivisionError):
        timer("divide", operator.truediv, 1, 0)
    assert timer.count == {"add": 1}
    assert set(timer.seconds) == {"add"}


def test_a_spread_has_median_and_range(harness: Any) -> None:
    spread = harness.Spread.of([4.0, 1.0, 2.0])
    assert (spread.median, spread.least, spread.most) == (2.0, 1.0, 4.0)
    assert str(spread) == "2.00 (1.00 to 4.00)"


def test_memory_of_this_process_is_read(harness: Any) -> None:
    status = harness.memory_status()
    assert status["VmHWM"] >= status["VmRSS"] > 2**20
    assert harness.resident_mb(harness.process_tree()) > 1


def test_tables_are_aligned_for_a_terminal_only(harness: Any) -> None:
    rows = [{"name": "a", "value": "10.0"}, {"name": "longer", "value": "2"}]
    assert harness.markdown(rows) == "| name | value |\n| --- | --- |\n| a | 10.0 |\n| longer | 2 |"
    aligned = harness.markdown(rows, align=True).splitlines()
    assert len({len(line) for line in aligned}) == 1
    assert aligned[2] == "| a      | 10.0  |"


@dataclass
class Row:
    value: float


def test_reports_have_dataclasses_as_objects(harness: Any, tmp_path: Path) -> None:
    harness.write_json(None, [Row(1.5)])
    harness.write_report(tmp_path / "results", "page", "# Page\n", [Row(1.5)])
    assert (tmp_path / "results" / "page.md").read_text() == "# Page\n"
    assert json.loads((tmp_path / "results" / "page.json").read_text()) == [{"value": 1.5}]
    with pytest.raises(TypeError):
        harness.write_json(tmp_path / "page.json", object())
