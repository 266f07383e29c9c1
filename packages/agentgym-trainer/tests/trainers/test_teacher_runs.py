"""Tests of complete runs with a teacher: by one and by two processes, sharded, interrupted and resumed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.models.load import load_chat
from agentgym_trainer.models.scratch import build_model
from agentgym_trainer.run.folder import RunFolder
from compared_runs import assert_same_runs
from forked_processes import run_two_processes, train_with_signals
from metric_lines import without_measured
from safetensors.torch import load_file
from toy_learner import SignalPoint, coin_flags, train_cli
from train_processes import train

pytestmark = pytest.mark.long

SETTINGS = (
    *("--algorithm", "grpo", "--algorithm.kl.weight", "0.01", "--distillation.teacher-weight", "0.5"),
    *("--warm-start.episodes", "0", "--tasks-per-step", "5", "--steps", "3", "--save-every", "1"),
    *("--evaluation.every", "2"),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A policy that has imitated the expert a little, and a teacher of other sizes with the same tokenizer."""
    folder = RunFolder(tmp_path_factory.mktemp("models") / "run")
    assert train_cli(coin_flags(folder.path, "--steps", "1", "--evaluation.every", "0", "--evaluation.no-test")) == 0
    chat = load_chat(str(folder.start))
    sizes = Scratch(hidden=48, layers=3, heads=3, context=512)
    teacher = build_model(sizes, vocab=len(chat.tokenizer), end_id=chat.end_id, pad_id=chat.pad_id, seed=1)
    with torch.no_grad():
        for weight in teacher.parameters():  # otherwise its distributions would be nearly uniform
            weight.mul_(2.0 if weight.ndim > 1 else 1.0)
    teacher.save_pretrained(folder.path / "teacher")
    chat.tokenizer.save_pretrained(folder.path / "teacher")
    return folder.start, folder.path / "teacher"


def _flags(out: Path, models: tuple[Path, Path]) -> list[str]:
    policy, teacher = map(str, models)
    return coin_flags(out, *SETTINGS, "--model", policy, "--distillation.teacher", teacher)


@pytest.fixture(scope="module")
def one(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """An uninterrupted run of one process."""
    folder = RunFolder(tmp_path_factory.mktemp("one") / "run")
    assert train_cli(_flags(folder.path, models)) == 0
    assert all(line["teacher/kl"] > 0.1 for line in folder.read_metrics()), "policy and teacher are too similar"
    return folder


def _metrics(folder: RunFolder) -> list[dict[str, Any]]:
    return without_measured(folder.read_metrics())


def test_a_killed_run_resumes_exactly(one: RunFolder, models: tuple[Path, Path], tmp_path: Path) -> None:
    run, log = RunFolder(tmp_path / "run"), tmp_path / "log"
    killed = SignalPoint("agentgym_trainer.trainers.distillation:Distiller", "score", 2)
    assert train_with_signals(killed, _flags(run.path, models), log) == -signal.SIGKILL, log.read_text()
    assert [line["step"] for line in run.read_metrics()] == [1]
    assert train_cli(["--resume", str(run.path)]) == 0
    assert _metrics(run) == _metrics(one)
    weights, expected = (load_file(folder.model / "model.safetensors") for folder in (run, one))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize("mode", ["ddp", "sharded"])
def test_two_processes_train_and_resume_like_one(
    mode: str, one: RunFolder, models: tuple[Path, Path], tmp_path: Path
) -> None:
    run, log = RunFolder(tmp_path / "run"), tmp_path / "log"
    codes = run_two_processes(train, mode, "interrupted", _flags(run.path, models), log=log)
    assert codes == [130, 130], log.read_text()
    assert run_two_processes(train, mode, "none", ["--resume", str(run.path)], log=log) == [0, 0], log.read_text()
    assert_same_runs(run, one)
