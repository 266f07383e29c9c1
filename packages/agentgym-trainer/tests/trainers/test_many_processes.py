"""Tests of complete runs by two processes: equality with one process, and faults of one of the two."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from agentgym_envs import read_episodes
from agentgym_trainer.run.folder import RunFolder
from compared_runs import assert_same_runs
from forked_processes import run_two_processes
from safetensors.torch import load_file
from toy_learner import coin_flags, sft_flags, train_cli
from train_processes import train

pytestmark = pytest.mark.long

CONFIG = Path(str(files("agentgym_trainer"))) / "accelerate_configs" / "cpu-ddp.yaml"
# Resampling and task choice depend on the episodes of all processes; mini-batches are distributed over them.
SETTINGS = (
    *("--algorithm", "dapo", "--algorithm.groups.rounds", "1", "--sampler", "mid-success"),
    *("--distillation.expert", "oracle", "--distillation.fraction", "0.5", "--distillation.schedule", "linear"),
    *("--imitation.weight", "0.3", "--imitation.data.episodes", "12", "--imitation.batch", "5"),
    *("--tasks-per-step", "5", "--steps", "3", "--evaluation.every", "2", "--save-every", "1"),
    *("--warm-start.epochs", "4"),
)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of one process."""
    folder = RunFolder(tmp_path_factory.mktemp("one") / "run")
    assert train_cli(coin_flags(folder.path, *SETTINGS)) == 0
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of two processes with DDP, started by accelerate's launcher."""
    folder = RunFolder(tmp_path_factory.mktemp("two") / "run")
    launcher = ("-m", "accelerate.commands.launch", "--config_file", str(CONFIG), "--main_process_port", "0")
    done = subprocess.run(
        [sys.executable, *launcher, "-m", "agentgym_trainer", *coin_flags(folder.path, *SETTINGS)],
        check=False, capture_output=True, text=True, timeout=300,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "by 2 processes" in done.stderr
    assert done.stderr.count("recipe textcraft-grpo") == 1
    return folder


def test_two_processes_train_like_one(one: RunFolder, two: RunFolder) -> None:
    lines = list(one.read_metrics())
    assert all(line["trained"] and line["grad_norm"] > 0.1 for line in lines), "some steps have no training signal"
    assert sum(line["groups"]["all"] for line in lines) > 3 * 5, "no groups were resampled"
    assert_same_runs(two, one)


def test_two_processes_warm_start_by_dagger_like_one(tmp_path: Path) -> None:
    dagger = ("--warm-start.dagger.rounds", "1", "--warm-start.dagger.episodes", "30")
    settings = (*dagger, "--warm-start.epochs", "4", "--steps", "1")
    one, two, log = RunFolder(tmp_path / "one"), RunFolder(tmp_path / "two"), tmp_path / "log"
    assert train_cli(coin_flags(one.path, *settings)) == 0
    assert run_two_processes(train, "ddp", "none", coin_flags(two.path, *settings), log=log) == [0, 0], log.read_text()
    played, expected = ([*read_episodes(run.warm_start / "round-0001.jsonl")] for run in (two, one))
    texts = [[(e.task_id, [turn.reply.text for turn in e.turns]) for e in episodes] for episodes in (played, expected)]
    assert texts[0] == texts[1]
    assert len(played) == 30
    weights, expected_weights = (load_file(run.start / "model.safetensors") for run in (two, one))
    for name, tensor in expected_weights.items():
        torch.testing.assert_close(weights[name], tensor, atol=1e-3, rtol=0)


def test_two_processes_with_sharding_train_and_resume_like_one(one: RunFolder, tmp_path: Path) -> None:
    run, log = RunFolder(tmp_path / "run"), tmp_path / "log"
    codes = run_two_processes(train, "sharded", "interrupted", coin_flags(run.path, *SETTINGS), log=log)
    assert codes == [130, 130], log.read_text()
    saved = run.checkpoints / "step-000001"
    assert len(list((saved / "pytorch_model_fsdp_0").glob("*.distcp"))) == 2
    assert (saved / "model.safetensors").exists()
    assert run_two_processes(train, "sharded", "none", ["--resume", str(run.path)], log=log) == [0, 0], log.read_text()
    assert_same_runs(run, one)
    # The engines have copies of the weights, which are compared to the learner's after every update.
    assert all(line["logprob_check_gap"] < 1e-4 for line in run.read_metrics())


def test_two_processes_sample_their_shares_asynchronously(tmp_path: Path) -> None:
    run, log = RunFolder(tmp_path / "run"), tmp_path / "log"
    settings = ("--algorithm", "grpo", "--algorithm.groups.zero-variance", "keep", "--async-rollout.max-staleness", "1")
    flags = coin_flags(run.path, *SETTINGS, *settings)
    assert run_two_processes(train, "ddp", "none", flags, log=log) == [0, 0], log.read_text()
    lines = list(run.read_metrics())
    assert [(line["groups"]["all"], line["trained"]) for line in lines] == [(5, 20)] * 3
    assert max(line["staleness"]["max"] for line in lines) <= 1
    assert all(line["lengths"]["trained"] == line["lengths"]["drawn"] for line in lines)
    # Each process saves its groups in flight, of which there are none at the end.
    progress = json.loads((run.checkpoints / "step-000003" / "progress.json").read_text())
    assert progress["in_flight"] == [{"draws": 3, "groups": []}] * 2
    assert all(line["logprob_check_gap"] < 1e-4 for line in lines)


def test_a_fault_of_one_process_ends_both_and_the_run_resumes(two: RunFolder, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    arguments = coin_flags(run.path, *SETTINGS)
    for fault, code, last_step, message in (
        ("preempted", 143, 1, "Terminated. Progress is saved; resume with: uv run "),
        ("interrupted", 130, 2, "Saved after step 2; resume with: uv run "),
        ("engine-gone", 1, 2, "error: The engine has left for good. Progress is saved; resume with: uv run "),
        ("killed", -signal.SIGKILL, 2, ""),
    ):
        log = tmp_path / f"{fault}.log"
        codes = run_two_processes(train, "ddp", fault, arguments, log=log)
        stderr = " ".join(log.read_text().split())
        assert codes == [code, code] if fault != "killed" else codes[0] != 0 and codes[1] == code, stderr
        assert message in stderr
        assert (
            json.loads((run.checkpoints / f"step-00000{last_step}" / "progress.json").read_text())["step"] == last_step
        )
        assert not (run.checkpoints / f"step-00000{last_step + 1}").exists()
        arguments = ["--resume", str(run.path)]
    assert run_two_processes(train, "ddp", "none", arguments, log=tmp_path / "log") == [0, 0]
    assert_same_runs(run, two)


def test_an_error_of_one_process_ends_both_and_both_save_the_run(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    arguments = coin_flags(run.path, "--steps", "3", "--save-every", "9", "--evaluation.every", "2")
    for fault, last_step, message in (
        ("tasks", 1, "The tasks are gone. Progress is saved"),
        ("estimator", 1, "There are no advantages. Progress is saved"),
        ("evaluation", 2, "The dev tasks are gone. Progress is saved"),
        ("saved", 2, "The tasks can't be counted. Progress is saved"),
    ):
        log = tmp_path / f"{fault}.log"
        assert run_two_processes(train, "ddp", fault, arguments, log=log) == [1, 1], log.read_text()
        assert log.read_text().replace("\n", " ").count(f"error: {message}") == 2
        assert max(path.name for path in run.checkpoints.glob("step-*")) == f"step-00000{last_step}"
        arguments = ["--resume", str(run.path)]
    assert run_two_processes(train, "ddp", "none", arguments, log=tmp_path / "log") == [0, 0]


def test_both_processes_end_with_an_error_if_all_checkpoints_are_damaged(two: RunFolder, tmp_path: Path) -> None:
    run, log = RunFolder(tmp_path / "run"), tmp_path / "log"
    shutil.copytree(two.path, run.path)
    shutil.rmtree(run.model)
    for checkpoint in run.checkpoints.glob("step-*"):
        (checkpoint / "progress.json").write_text("{")
    assert run_two_processes(train, "ddp", "none", ["--resume", str(run.path)], log=log) == [2, 2], log.read_text()
    assert " are damaged: " in " ".join(log.read_text().split())


def test_two_processes_fine_tune_like_one(tmp_path: Path) -> None:
    one, two = (RunFolder(tmp_path / name) for name in ("one", "two"))
    assert train_cli(sft_flags(one.path)) == 0
    log = tmp_path / "log"
    assert run_two_processes(train, "ddp", "none", sft_flags(two.path), log=log) == [0, 0], log.read_text()
    one_lines, two_lines = list(one.read_metrics()), list(two.read_metrics())
    assert [line["step"] for line in one_lines] == [line["step"] for line in two_lines]
    for name in ("loss", "grad_norm", "mean_token_accuracy"):
        assert [line[name] for line in one_lines] == pytest.approx([line[name] for line in two_lines], rel=1e-3)
    weights = load_file(one.model / "model.safetensors")
    for name, weight in load_file(two.model / "model.safetensors").items():
        torch.testing.assert_close(weight, weights[name], rtol=1e-3, atol=1e-4)
    for checkpoint in two.checkpoints.glob("step-*"):
        (checkpoint / "trainer_state.json").write_text("{")
    assert run_two_processes(train, "ddp", "none", ["--resume", str(two.path)], log=log) == [2, 2], log.read_text()


def test_a_checkpoint_of_fine_tuning_is_complete_with_the_files_of_all_processes(tmp_path: Path) -> None:
    run, log = RunFolder(tmp_path / "run"), tmp_path / "log"
    assert run_two_processes(train, "ddp", "random-state", sft_flags(run.path), log=log) == [1, 1], log.read_text()
    assert log.read_text().count("The disk is full.") == 2
    assert list(run.checkpoints.iterdir()) == []
