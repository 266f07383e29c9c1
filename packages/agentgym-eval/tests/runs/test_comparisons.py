"""Tests of `compare`, and of the comparisons in the report of several runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from agentgym_eval.cli.main import compare, evaluate
from counting_world import ENV

pytestmark = pytest.mark.usefixtures("no_plots")


def test_report_compares_each_policy_with_the_first(many: Path) -> None:
    report = json.loads((many / "report.json").read_text())
    assert [(run["policy"], run["world"]) for run in report["runs"]] == [
        ("oracle", ENV), ("oracle", "textcraft"), ("random", ENV), ("random", "textcraft"),
    ]  # fmt: skip
    pairs = [(pair["first"], pair["second"], pair["tasks"]) for pair in report["comparisons"]]
    assert pairs == [
        (f"oracle in {ENV}", f"random in {ENV}", 4),
        ("oracle in textcraft", "random in textcraft", 4),
        ("oracle in all environments", "random in all environments", 8),
    ]
    difference = report["comparisons"][2]["success"]
    rates = [run["overall"]["success"]["mean"] for run in report["runs"]]
    assert difference["difference"]["mean"] == pytest.approx((sum(rates[2:]) - sum(rates[:2])) / 2)


def test_compare_writes_a_report_of_two_runs(many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = many / "count-oracle-test", many / "count-random-test"
    assert compare([str(first), str(second), "--out", str(tmp_path / "report")]) == 0
    out = capsys.readouterr().out
    assert "random vs. oracle" in out
    assert "The runs differ" not in out
    report = json.loads((tmp_path / "report/report.json").read_text())
    assert [run["policy"] for run in report["runs"]] == ["oracle", "random"]
    assert report["runs"][0]["overall"]["pass_at"].keys() == {"1", "2"}
    assert report["comparisons"][0]["success"]["first"] == 1.0
    assert (tmp_path / "report/report.html").exists()


def test_compare_accepts_a_folder_of_runs(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare([str(many)]) == 0
    assert "random in all environments vs. oracle in all environments" in capsys.readouterr().out


def test_pair_with_tasks_in_one_environment_is_compared_once(many: Path, tmp_path: Path) -> None:
    runs = [str(many / name) for name in ("textcraft-oracle-test", "count-oracle-test", "textcraft-random-test")]
    assert compare([*runs, "--out", str(tmp_path)]) == 0
    (pair,) = json.loads((tmp_path / "report.json").read_text())["comparisons"]
    assert (pair["second"].partition(" in ")[0], pair["tasks"]) == ("random", 4)
    assert pair["success"]["p_adjusted"] == pair["success"]["p"] < 1


def test_compare_names_incomplete_runs(many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = many / "count-oracle-test", tmp_path / "begun"
    shutil.copytree(many / "count-random-test", second)
    lines = (second / "episodes.jsonl").read_text().splitlines(keepends=True)
    (second / "episodes.jsonl").write_text("".join(lines[:3]))
    assert compare([str(first), str(second), "--out", str(tmp_path / "report")]) == 0
    sentence = f"{second} is incomplete: 3 of 8 episodes have been played."
    assert capsys.readouterr().out.replace("\n", " ").count("is incomplete") == 1
    assert sentence.replace("_", r"\_") in (tmp_path / "report/report.md").read_text()
    incomplete = [run.get("incomplete") for run in json.loads((tmp_path / "report/report.json").read_text())["runs"]]
    assert incomplete == [None, sentence]


def test_runs_with_named_tasks_of_several_environments_are_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["--task", "count/test/2", "count/test/2", "textcraft/test/leather_boots", "textcraft/test/map"]
    flags = ["--env", ENV, "textcraft", *named, "--policy", "oracle", "random", "--horizon", "5"]
    assert evaluate([*flags, "--out", str(tmp_path)]) == 0
    assert compare([str(tmp_path)]) == 0
    assert "is incomplete" not in capsys.readouterr().out


def test_policies_that_share_no_environment_are_not_compared(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare([str(many / "count-oracle-test"), str(many / "textcraft-random-test"), str(many)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "adjusted for 3 comparisons (Holm)" in out


def test_runs_of_only_failures_are_no_runs_of_other_tasks(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    flags = ["--env", ENV, "--policy", "oracle", "--options", f"broken={tuple(range(10))}", "--max-failed", "1"]
    assert evaluate([*flags, "--out", str(broken)]) == 0
    capsys.readouterr()
    assert compare([str(many / "count-random-test"), str(broken)]) == 2
    err = capsys.readouterr().err
    assert f"10 of 10 episodes of oracle in {broken} failed, most often with EnvFault: " in err
    assert "no task in common" not in err


def test_runs_of_one_policy_are_labeled_by_their_paths(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "short"
    flags = ["--env", ENV, "--policy", "random", "--horizon", "3", "--samples", "2"]
    assert evaluate([*flags, "--out", str(short)]) == 0
    capsys.readouterr()
    assert compare([str(many / "count-random-test"), str(short / "episodes.jsonl")]) == 0
    out = "".join(capsys.readouterr().out.split())
    assert f"random({short}/episodes.jsonl)vs." in out
    assert "Therunsdifferinhorizon:15,3." in out
    assert "0tasksthatonlythefirstand6thatonlythesecond" in out


@pytest.mark.parametrize(
    ("runs", "sentence"),
    [
        (["{many}/count-oracle-test"], "A comparison needs at least two runs, but got "),
        (["{many}/count-oracle-test", "{many}/nothing"], "There is no run at"),
        (["{many}/count-oracle-test", "{many}/textcraft-oracle-test"], "no task in common"),
        (["{many}/count-oracle-test", "{tmp_path}/train"], "nor evaluations of a training run. Name a folder"),
        (["{many}/count-oracle-test", "{tmp_path}/empty.jsonl"], "has no episodes"),
        (["{many}/count-oracle-test", "{many}/report.json"], "can't be read as episodes"),
    ],
)
def test_runs_that_cannot_be_compared_are_rejected(
    many: Path, tmp_path: Path, runs: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "train/evaluations").mkdir(parents=True)
    assert compare([run.format(many=many, tmp_path=tmp_path) for run in runs]) == 2
    assert sentence in capsys.readouterr().err


def test_a_training_run_is_compared_by_its_last_evaluation(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluations = tmp_path / "train/evaluations"
    evaluations.mkdir(parents=True)
    # A run that was stopped during its test may have played the initial model only.
    for name in (
        *("step-000000-sampled", "test-000000-greedy", "test-000000-sampled"),
        *("step-000004-sampled", "step-000010-greedy", "step-000010-sampled", "test-000010-sampled"),
    ):
        shutil.copy(many / "count-random-test/episodes.jsonl", evaluations / f"{name}.jsonl")
        oracle = str(many / "count-oracle-test")
        assert compare([oracle, str(tmp_path / "train"), "--out", str(tmp_path / name)]) == 0
        assert f"train/evaluations/{name}.jsonl" in (tmp_path / name / "report.json").read_text()


def test_runs_given_by_path_are_grouped_by_policy(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(sorted(str(folder) for folder in many.glob("*-test"))) == 0
    printed = capsys.readouterr().out
    assert compare([str(many)]) == 0
    assert printed.count(" vs. ") == capsys.readouterr().out.count(" vs. ")
    assert "(" not in printed.partition("second vs. first")[0].partition("Means with 95%")[0]


def test_runs_of_one_policy_and_environment_are_not_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for horizon in ("3", "9"):
        assert evaluate(["--env", ENV, "--policy", "oracle", "--horizon", horizon, "--out", f"all/{horizon}"]) == 0
    capsys.readouterr()
    assert compare(["all"]) == 0
    assert "oracle (all/9) vs. oracle (all/3)" in capsys.readouterr().out


def test_k_larger_than_the_number_of_attempts_is_rejected(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(many / f"count-{policy}-test") for policy in ("oracle", "random")]
    assert compare([*runs, "--k", "1", "9"]) == 2
    assert "pass@9 needs 9 attempts at a task, but these runs have at most 2; lower --k." in capsys.readouterr().err
    assert compare([*runs, "--k", "2"]) == 0


def test_compare_refuses_to_write_into_a_run_folder(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = many / "count-oracle-test", tmp_path / "file"
    file.touch()
    before = (run / "report.json").read_bytes()
    assert compare([str(many), "--out", str(run)]) == 2
    assert "holds a run, whose report would be overwritten" in capsys.readouterr().err
    assert (run / "report.json").read_bytes() == before
    assert compare([str(many), "--out", str(file / "below")]) == 2
    assert "can't be written to" in capsys.readouterr().err


def test_repeated_lines_are_one_attempt(many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_text((many / "count-random-test/episodes.jsonl").read_text() * 2)
    assert compare([str(many / "count-oracle-test"), str(path), "--out", str(tmp_path / "report")]) == 0
    assert (
        f"{path}, line 1: count/test/1, sample 0, is in line 9 again, which counts instead.\n"
        in capsys.readouterr().err
    )
    run = json.loads((tmp_path / "report/report.json").read_text())["runs"][1]
    assert (run["overall"]["episodes"], list(run["overall"]["pass_at"])) == (8, ["1", "2"])
    assert evaluate(["--env", ENV, "--policy", "oracle", "--detect", "0.1", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "is in line 9 again" in out
    path.write_text((many / "count-random-test/episodes.jsonl").read_text())
    assert evaluate(["--env", ENV, "--policy", "oracle", "--detect", "0.1", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [line for line in out.splitlines() if "again" not in line]
