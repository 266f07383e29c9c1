"""Tests of discarding and opening run folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agentgym_eval.runs.recorded_env import raw_env_options
from agentgym_eval.storage.distances import distances_file
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.runs import Run
from agentgym_trainer.config import RLConfig, SFTConfig, WorldConfig
from agentgym_trainer.run.disk import WriteError
from agentgym_trainer.run.folder import RunFolder
from faulty_runs import no_space_for

pytestmark = pytest.mark.quick


def prepared(path: Path, *names: str) -> RunFolder:
    folder = RunFolder.create(path / "run", SFTConfig(), "sft-textcraft")
    for name in ("data.jsonl", "start/model.safetensors", "wandb/offline-run-1/run.wandb", "vllm-0.log", *names):
        (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.path / name).write_text("" if name == "metrics.jsonl" else "something")
    folder.checkpoints.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize(
    "files",
    [
        (),
        ("metrics.jsonl",),
        ("warm_start/demonstrations.jsonl",),
        ("iteration-0000/sft/run.json", "iteration-0000/sft/data.jsonl"),
    ],
)
def test_discard_removes_a_run_without_results(tmp_path: Path, files: tuple[str, ...]) -> None:
    folder = prepared(tmp_path, *files)
    folder.discard()
    assert not folder.path.exists()


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints/step-000001/model.safetensors",
        "evaluations/step-000000-greedy.jsonl",
        "iteration-0000/sft/evaluations/step-000000-greedy.jsonl",
        "notes.txt",
        "mine/notes.txt",
        "iteration-0000/notes.txt",
        "data.jsonl.d/notes.txt",
    ],
)
def test_discard_keeps_results_and_other_files(tmp_path: Path, name: str) -> None:
    folder = prepared(tmp_path, name)
    before = sorted(folder.path.rglob("*"))
    folder.discard()
    assert sorted(folder.path.rglob("*")) == before


def test_run_of_another_schema_version_is_rejected(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    record = json.loads(folder.settings.read_text())
    folder.settings.write_text(json.dumps(record | {"schema": "agentgym.train/2"}))
    with pytest.raises(
        UsageError, match=r"agentgym\.train/2; this version has agentgym\.train/4\)\. Resume it with that"
    ):
        RunFolder.open(folder.path)


def test_discard_keeps_metrics(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    folder.log({"step": 1})
    folder.discard()
    assert list(folder.read_metrics()) == [{"step": 1}]


def test_discard_keeps_episodes_played_by_a_model(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    folder.keeps_data = True
    folder.discard()
    assert folder.data.exists()
    folder.data.unlink()
    folder.discard()
    assert not folder.path.exists()


def test_discard_empties_a_folder_that_cannot_be_removed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "run").symlink_to("real")
    folder = prepared(tmp_path)
    folder.discard()
    assert list((tmp_path / "real").iterdir()) == []


def test_viewer_finds_the_options_of_every_environment(tmp_path: Path) -> None:
    extra = WorldConfig("agentgym/BabyAI-v0", options=("levels='GoTo'",))
    config = RLConfig(world=WorldConfig("agentgym/TextCraft-v0", options=("depth=(1, 2)",)), extra_worlds=(extra,))
    folder = RunFolder.create(tmp_path / "run", config, "mixed")
    run = Run("run", "run", folder.path, "train", json.loads((folder.path / "run.json").read_text()))
    assert raw_env_options(run.settings, "agentgym/TextCraft-v0") == ["depth=(1, 2)"]
    assert raw_env_options(run.settings, "agentgym/BabyAI-v0") == ["levels='GoTo'"]


def test_resuming_removes_later_evaluations_and_nothing_else(tmp_path: Path) -> None:
    run = prepared(tmp_path / "run", "run.json")
    run.evaluations.mkdir()
    later = ["step-000004-sampled.jsonl", "step-000004-sampled.distances.jsonl", "test-000004-greedy.jsonl"]
    others = [
        "step-000002-sampled.jsonl",
        "step-best-sampled.jsonl",
        "._step-000004-sampled.jsonl",
        "subset-200.jsonl",
        "my-notes.jsonl",
    ]
    for name in (*later, *others):
        (run.evaluations / name).touch()
    run.metrics.write_text("".join(json.dumps({"step": step}) + "\n" for step in (1, 2, 3)))
    assert run.evaluated_steps("sampled") == [2, 4]
    run.rewind(2)
    assert {path.name for path in run.evaluations.iterdir()} == {*others}


def test_a_new_evaluation_does_not_keep_the_distances_of_an_old_one(tmp_path: Path) -> None:
    run = prepared(tmp_path / "run")
    distances = distances_file(run.evaluation_file(2, "sampled"))
    distances.parent.mkdir()
    distances.touch()
    run.save_evaluation(2, "sampled", [])
    assert not distances.exists()


def test_folders_that_cannot_be_created_are_named(tmp_path: Path) -> None:
    path, then = tmp_path / "iteration-0001" / "sft", "continue with --resume"
    with no_space_for("sft", "mkdir"), pytest.raises(WriteError, match=f"^{path} can't be written: .* and {then}\\.$"):
        RunFolder.create(path, SFTConfig(), "iteration 1", then=then)
