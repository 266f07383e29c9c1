"""Tests of `evaluate --forensics` and `compare --forensics`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agentgym_envs import read_episodes
from agentgym_eval.cli.main import compare, evaluate
from agentgym_eval.runs.comparisons import read_runs
from agentgym_eval.runs.oracle_distances import DistanceMeter, saved_distances
from agentgym_eval.storage.distances import read_distances
from counting_world import ENV, Count


def causes(folder: Path) -> dict[str, int]:
    found = json.loads((folder / "report.json").read_text())["causes"]
    return {kind: by["episodes"] for kind, by in found.items()}


def test_forensics_measures_the_distances_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    actions = tmp_path / "actions.txt"
    actions.write_text("add\n")  # again and again, past every goal
    command = ["--env", ENV, "--policy", f"scripted:{actions}", "--tasks", "4", "--horizon", "4"]
    assert evaluate([*command, "--out", str(tmp_path / "plain")]) == 0
    assert evaluate([*command, "--out", str(tmp_path / "measured"), "--forensics"]) == 0
    assert not (tmp_path / "plain" / "episodes.distances.jsonl").exists()
    assert causes(tmp_path / "plain") == {"turn_budget": 4}
    measured = causes(tmp_path / "measured")
    assert sum(measured.values()) == 4
    assert measured["over_interaction"] > 0
    capsys.readouterr()

    runs = [str(tmp_path / "plain"), str(tmp_path / "measured")]
    assert compare([*runs, "--out", str(tmp_path / "compared")]) == 0
    found = json.loads((tmp_path / "compared" / "report.json").read_text())
    assert [list(run["causes"]) for run in found["runs"]] == [["turn_budget"]] * 2  # only one of them was measured
    assert not (tmp_path / "plain" / "episodes.distances.jsonl").exists()
    for flags in (["--forensics"], []):  # which the second finds
        assert compare([*runs, *flags, "--out", str(tmp_path / "compared")]) == 0
        found = json.loads((tmp_path / "compared" / "report.json").read_text())
        assert found["runs"][0]["causes"] == found["runs"][1]["causes"]
        assert "over_interaction" in found["comparisons"][0]["causes"]
    plain, measured = (read_distances(tmp_path / name / "episodes.jsonl") for name in ("plain", "measured"))
    assert plain == measured


def test_evaluations_of_a_training_run_keep_their_distances(tmp_path: Path) -> None:
    (actions := tmp_path / "actions.txt").write_text("add\n")
    command = ["--env", ENV, "--policy", f"scripted:{actions}", "--tasks", "4", "--horizon", "4"]
    assert evaluate([*command, "--out", str(tmp_path / "played")]) == 0
    (folder := tmp_path / "trained" / "evaluations").mkdir(parents=True)
    config = {"seed": 0, "world": {"env": ENV, "options": []}}
    (folder.parent / "run.json").write_text(json.dumps({"schema": "agentgym.train/2", "config": config}))
    files = [folder / f"test-00000{step}-sampled.jsonl" for step in (0, 4)]
    for file in files:
        file.write_text((tmp_path / "played" / "episodes.jsonl").read_text())
    played = read_runs(files, (), 0, forensics=True)
    assert [list(run.notes) for run in played] == [[], []]
    assert all("over_interaction" in run.evaluated.report.causes for run in played)
    assert all(len(read_distances(file)) == 4 for file in files)
    assert [run.distances for run in read_runs(files, (), 0)] == [run.distances for run in played]
    by_folder = read_runs([folder.parent, files[0]], (), 0)
    assert [len(run.episodes) for run in by_folder] == [4, 4], "files of distances aren't evaluations"


def test_compare_says_that_distances_cannot_be_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (actions := tmp_path / "actions.txt").write_text("add\n")
    command = ["--env", ENV, "--policy", f"scripted:{actions}", "--tasks", "4", "--horizon", "4"]
    runs = [tmp_path / name for name in ("blocked", "measured")]
    for run in runs:
        assert evaluate([*command, "--out", str(run)]) == 0
    (runs[0] / "episodes.distances.jsonl").mkdir()  # where no file can be written
    capsys.readouterr()
    assert compare([*map(str, runs), "--forensics"]) == 0
    shown = capsys.readouterr()
    assert f"could not be saved in {runs[0] / 'episodes.distances.jsonl'}" in shown.err
    assert "over-interaction" in shown.out
    assert len(read_distances(runs[1] / "episodes.jsonl")) == 4


def test_an_interrupted_measurement_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (actions := tmp_path / "actions.txt").write_text("add\n")
    command = ["--env", ENV, "--policy", f"scripted:{actions}", "--tasks", "4", "--horizon", "4"]
    assert evaluate([*command, "--out", str(tmp_path / "run")]) == 0
    file = tmp_path / "run" / "episodes.jsonl"
    episodes, checks = list(read_episodes(file)), iter([None, None, KeyboardInterrupt])

    def check() -> None:
        if error := next(checks):
            raise error

    with pytest.raises(KeyboardInterrupt):
        saved_distances(file, episodes, check)
    assert len(partial := read_distances(file)) == 3
    replayed, measured = list[str](), DistanceMeter.distances
    monkeypatch.setattr(
        DistanceMeter, "distances", lambda meter, each: replayed.append(each.task_id) or measured(meter, each)
    )
    found, note = saved_distances(file, episodes)
    assert (len(replayed), len(found), note) == (1, 4, "")
    assert found | partial == found == read_distances(file)


def test_episodes_with_the_same_task_and_sample_are_not_measured(tmp_path: Path) -> None:
    (actions := tmp_path / "actions.txt").write_text("add\n")
    command = ["--env", ENV, "--policy", f"scripted:{actions}", "--tasks", "4", "--horizon", "4"]
    assert evaluate([*command, "--out", str(tmp_path / "run")]) == 0
    text = (tmp_path / "run" / "episodes.jsonl").read_text()
    (merged := tmp_path / "merged.jsonl").write_text(text + text.replace("scripted:", "other:"))
    played = read_runs([tmp_path / "run", merged], (), 0, forensics=True)
    assert [run.distances for run in played] == [{}, {}]
    assert not merged.with_suffix(".distances.jsonl").exists()
    assert "can't be measured for all episodes of" in played[1].notes[0]


def test_causes_are_compared_without_distances_if_some_failures_have_none(tmp_path: Path) -> None:
    actions, runs = tmp_path / "actions.txt", [tmp_path / name for name in ("measured", "extended")]
    actions.write_text("add\n")
    command = ["--env", ENV, "--policy", f"scripted:{actions}", "--tasks", "4", "--horizon", "4"]
    assert evaluate([*command, "--samples", "2", "--out", str(runs[0]), "--forensics"]) == 0
    assert evaluate([*command, "--samples", "1", "--out", str(runs[1]), "--forensics"]) == 0
    assert evaluate([*command, "--samples", "2", "--out", str(runs[1])]) == 0
    assert len(read_distances(runs[1] / "episodes.jsonl")) == 4
    played = read_runs(runs, (), 0)
    assert [list(run.evaluated.report.causes) for run in played] == [["turn_budget"]] * 2


def test_overwrite_discards_the_distances_of_the_old_run(tmp_path: Path) -> None:
    actions, folders = tmp_path / "actions.txt", [tmp_path / name for name in ("replaced", "fresh")]
    command = ["--env", ENV, "--policy", f"scripted:{actions}", "--tasks", "4", "--horizon", "4", "--forensics"]
    for text, folder, flags in (("add\n", 0, []), ("add\nwait\n", 0, ["--overwrite"]), ("add\nwait\n", 1, [])):
        actions.write_text(text)
        assert evaluate([*command, "--out", str(folders[folder]), *flags]) == 0
    replaced, fresh = (read_distances(folder / "episodes.jsonl") for folder in folders)
    assert replaced == fresh
    assert causes(folders[0]) == causes(folders[1])


@pytest.mark.parametrize(("shown", "env"), [("Target", "counting"), ("Goal", "nowhere")])
def test_causes_are_compared_without_distances_if_a_run_cannot_be_replayed(
    tmp_path: Path, shown: str, env: str
) -> None:
    actions, runs = tmp_path / "actions.txt", [tmp_path / name for name in ("measured", "changed")]
    actions.write_text("add\n")
    command = ["--env", ENV, "--policy", f"scripted:{actions}", "--tasks", "4", "--horizon", "4"]
    assert evaluate([*command, "--out", str(runs[0]), "--forensics"]) == 0
    assert evaluate([*command, "--out", str(runs[1])]) == 0
    file = runs[1] / "episodes.jsonl"
    file.write_text(file.read_text().replace("Goal: ", f"{shown}: ").replace("counting/Count-v0", f"{env}/Count-v0"))
    played = read_runs(runs, (), 0, forensics=True)
    assert [run.distances for run in played] == [{}, {}]
    assert [list(run.evaluated.report.causes) for run in played] == [["turn_budget"]] * 2
    assert [len(run.notes) for run in played] == [0, 1]
    assert str(file) in played[1].notes[0]
    assert not file.with_suffix(".distances.jsonl").exists()


def test_forensics_refuses_to_play_where_distances_cannot_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Count, "oracle_replans", False)
    command = ["--env", ENV, "--policy", "random", "--tasks", "2", "--horizon", "2", "--out", str(tmp_path / "run")]
    assert evaluate([*command, "--forensics"]) == 2
    assert f"an expert that decides from the current state, which {ENV} does not have" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert evaluate(command) == 0
