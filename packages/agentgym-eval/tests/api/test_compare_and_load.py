"""Tests of `agentgym_eval.compare` and `load_run`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from agentgym_eval import Report, TrainingRun, compare, evaluate, load_run
from agentgym_eval.cli.main import compare as compare_command
from agentgym_eval.util.errors import UsageError
from counting_world import ENV
from report_episodes import GOOD


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Report]:
    base = tmp_path_factory.mktemp("runs")
    policies = ("oracle", "random", "oracle:0.5")
    return [evaluate(policy, ENV, out=base / policy, samples=2, horizon=20) for policy in policies]


def test_reports_and_folders_are_compared_as_by_the_command(runs: list[Report], tmp_path: Path) -> None:
    found = compare([runs[0], runs[1].folder, str(runs[2].folder)], out=tmp_path / "function")
    assert [report.policy for report in found.runs] == ["oracle", "random", "oracle:0.5"]
    assert [pair.second for pair in found.comparisons] == ["random", "oracle:0.5"]
    assert found.comparisons[0].success.difference.mean < 0
    assert found.across_seeds is None
    assert list(found.differing) == []
    folders = [str(run.folder) for run in runs]
    assert compare_command([*folders, "--out", str(tmp_path / "command")]) == 0
    written = [json.loads((tmp_path / name / "report.json").read_text()) for name in ("function", "command")]
    assert written[0] == written[1] == found.to_dict()
    assert "random vs. oracle" in found.markdown()
    assert "<svg" in found.html()


def test_methods_are_compared_over_seeds(runs: list[Report]) -> None:
    seeds = [evaluate("random", ENV, out=runs[1].folder.with_name("random-1"), seed=1, samples=2, horizon=20), runs[1]]
    found = compare([runs[0], runs[2]], against=seeds)
    assert found.across_seeds is not None
    assert found.across_seeds.seeds == 2
    assert found.title == "Two training methods over 2 seeds"
    assert list(found.differing) == ["The runs differ in seed: 0, 1."]
    assert "comparisons (Holm)" not in found.markdown()  # the pairs repeat one comparison
    with pytest.raises(UsageError, match="as many runs as are named before it"):
        compare([runs[0], runs[2]], against=seeds[:1])
    for against in ([*seeds, seeds[0]], [runs[0], seeds[0]]):
        with pytest.raises(UsageError, match="is named twice"):
            compare([runs[0], runs[2]], against=against)
    with pytest.raises(UsageError, match="not 1 against 3"):
        compare([runs[0], runs[1], runs[2]], against=seeds[:1])


def test_wrong_comparisons_are_refused(runs: list[Report], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs at least two runs"):
        compare(runs[:1])
    with pytest.raises(UsageError, match="holds a run"):
        compare(runs, out=runs[0].folder)
    with pytest.raises(UsageError, match="every k 1 or more"):
        compare(runs, k=(0,))
    with pytest.raises(UsageError, match="every k 1 or more"):
        load_run(runs[0].folder, k=(0,))
    damaged = tmp_path / "damaged"
    shutil.copytree(runs[0].folder, damaged)
    with (damaged / "episodes.jsonl").open("a") as file:
        file.write('{"schema":"agentgym.ep')
    assert list(compare([damaged, runs[1]]).runs[0].left_out) == [f"{damaged}/episodes.jsonl, line 21: half a line"]
    about = json.loads((damaged / "run.json").read_text())
    (damaged / "run.json").write_text(json.dumps(about | {"settings": {"policy": ["x"]}}))
    with pytest.raises(UsageError, match=r"run.json can't be read: .*the policy is no text"):
        compare([damaged, runs[1]])
    with pytest.raises(UsageError, match="There is no run at"):
        compare([runs[0], tmp_path / "nowhere"])


def test_evaluations_are_loaded_with_their_settings_and_metrics(runs: list[Report]) -> None:
    loaded = load_run(runs[1].folder)
    assert isinstance(loaded, Report)
    assert (loaded.policy, loaded.folder) == ("random", runs[1].folder)
    assert loaded.metrics == runs[1].metrics
    assert list(loaded.episodes()) == list(runs[1].episodes())
    assert loaded.settings["horizon"] == 20
    assert load_run(runs[1].folder / "episodes.jsonl").title == loaded.title
    with pytest.raises(UsageError, match=r"holds no run\. Name one of the runs in it: .*/oracle,"):
        load_run(runs[1].folder.parent)


def test_training_runs_are_read_without_the_trainer(tmp_path: Path) -> None:
    record = {"schema": "agentgym.train/4", "kind": "rl", "recipe": "quickstart", "config": {"steps": 2}}
    (tmp_path / "run.json").write_text(json.dumps(record))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "success": 0.5}\n{"step": 2}\n{"ste')
    for name in (
        "checkpoints/step-000002",
        "checkpoints/step-000010",
        "checkpoints/.step-000012",
        "model",
        "evaluations",
    ):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "checkpoints/best").symlink_to("step-000002")
    for name in ("step-000002-sampled", "step-000000-sampled", "test-000002-greedy"):
        (tmp_path / f"evaluations/{name}.jsonl").write_text(GOOD[4].to_json() + "\n")
    run = load_run(tmp_path)
    assert isinstance(run, TrainingRun)
    assert (run.kind, run.recipe, run.settings["steps"], run.done) == ("rl", "quickstart", 2, False)
    assert [line["step"] for line in run.metrics()] == [1, 2]
    assert [path.name for path in run.checkpoints] == ["step-000002", "step-000010"]
    assert run.best_checkpoint == tmp_path / "checkpoints/step-000002"
    assert run.model == tmp_path / "model"
    found = [(evaluation.step, evaluation.decoding, evaluation.test) for evaluation in run.evaluations]
    assert found == [(0, "sampled", False), (2, "sampled", False), (2, "greedy", True)]
    assert len(list(run.evaluations[1].episodes())) == 1
    assert run.evaluations[1].report().success.mean == 1.0
    assert run.model_step is None
    (tmp_path / "summary.json").write_text('{"steps": 10, "model_step": 2}')
    assert (run.done, run.model_step) == (True, 2)
    compared = compare([run.evaluations[0].path, run.evaluations[1].path])
    assert compared.comparisons[0].tasks == 1
