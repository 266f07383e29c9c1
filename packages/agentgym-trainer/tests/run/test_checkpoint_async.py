"""Tests of checkpoints that are written in the background: exact copies, order, full disks, and what a kill leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from agentgym_trainer.curriculum.horizon import Stage
from agentgym_trainer.curriculum.state import TrainingState
from agentgym_trainer.run.checkpoint import Checkpoints
from agentgym_trainer.run.checkpoint_files import LearnerState
from agentgym_trainer.run.manifest import find_damage
from agentgym_trainer.tokens.chat import Chat
from patience import PATIENCE
from torch.distributed import checkpoint
from torch.distributed.checkpoint import filesystem
from toy_learner import limit_file_size


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", keep=1, say=print, background=True)


def _state(step: int) -> TrainingState:
    return TrainingState(Stage(3), step)


def _names(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.folder.iterdir())


@contextmanager
def _write_held_back() -> Generator[None]:
    """Let no state be written before the end of the context."""
    open_gate, write = threading.Event(), LearnerState.write

    def waiting(state: LearnerState, folder: Path) -> None:
        assert open_gate.wait(PATIENCE)
        write(state, folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LearnerState, "write", waiting)
        yield
        open_gate.set()


@pytest.mark.parametrize("kind", ["plain", "head", "separate", "lora"])
def test_updates_during_the_write_dont_change_what_is_saved(
    kind: str, make_learner: Callable[..., Any], chat: Chat, checkpoints: Checkpoints
) -> None:
    torch.manual_seed(1)
    learner = make_learner(kind)
    for step in (1, 2):  # the second time, the host memory is used again
        learner.update()
        learner.update()
        with _write_held_back():
            checkpoints.save(learner, chat.tokenizer, _state(step))
            expected_losses = [learner.update() for _ in range(3)]
        checkpoints.finish()
    other = make_learner(kind)
    assert checkpoints.resume(other) == _state(2)
    assert [other.update() for _ in range(3)] == expected_losses
    states = learner.actor.state_dict(), other.actor.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_files_are_the_same_as_in_the_foreground(
    make_learner: Callable[..., Any], chat: Chat, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    learner, metrics = make_learner("head"), tmp_path / "metrics.jsonl"
    learner.update()
    metrics.write_text("{}\n")
    plain = Checkpoints(tmp_path / "plain", keep=1, say=print)
    expected = plain.save(learner, chat.tokenizer, _state(1), metrics)
    with _write_held_back():
        found = checkpoints.save(learner, chat.tokenizer, _state(1), metrics)
        metrics.write_text("{}\n{}\n")  # the next step's line isn't the checkpoint's
    checkpoints.finish()
    assert {path.name for path in found.iterdir()} == {path.name for path in expected.iterdir()}
    for path in expected.iterdir():
        if path.name == "optimizer.bin":
            weights, written = (torch.load(folder / path.name) for folder in (expected, found))
            assert written["param_groups"] == weights["param_groups"]
            for key, moments in weights["state"].items():
                assert all(torch.equal(moment, written["state"][key][name]) for name, moment in moments.items())
        elif path.name != "manifest.json":
            assert (found / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_last_checkpoint_stays_until_the_next_is_whole(
    make_learner: Callable[..., Any], chat: Chat, checkpoints: Checkpoints
) -> None:
    learner = make_learner()
    checkpoints.save(learner, chat.tokenizer, _state(1))
    checkpoints.finish()
    with _write_held_back():
        first = checkpoints.latest()
        checkpoints.save(learner, chat.tokenizer, _state(2))
        checkpoints.settle()  # nothing has failed yet
        assert _names(checkpoints) == [".step-000002", "step-000001"]
        assert checkpoints.latest() == first == checkpoints.at(1)
    checkpoints.finish()
    assert _names(checkpoints) == ["step-000002"]
    assert checkpoints.latest() == checkpoints.at(2)


def test_one_checkpoint_is_written_at_a_time(
    make_learner: Callable[..., Any], chat: Chat, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[str]] = []
    start = Checkpoints._start_writing

    def watched(checkpoints: Checkpoints, unfinished: Path) -> None:
        found.append(_names(checkpoints) if checkpoints.folder.exists() else [])
        start(checkpoints, unfinished)

    monkeypatch.setattr(Checkpoints, "_start_writing", watched)
    learner = make_learner()
    for step in (1, 2, 3):
        checkpoints.save(learner, chat.tokenizer, _state(step))
    checkpoints.finish()
    assert found == [[], ["step-000001"], ["step-000002"]]


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.999])
@pytest.mark.parametrize("noticed_by", ["settle", "finish", "save"])
def test_full_disk_is_reported_after_the_save(
    share: float, noticed_by: str, make_learner: Callable[..., Any], chat: Chat, checkpoints: Checkpoints
) -> None:
    learner = make_learner("head")
    existing = checkpoints.save(learner, chat.tokenizer, _state(1))
    checkpoints.finish()
    biggest = max(path.stat().st_size for path in existing.iterdir())
    with pytest.raises(OSError, match="can't be written") as error:
        with limit_file_size(int(biggest * share)):
            checkpoints.save(learner, chat.tokenizer, _state(2))
            checkpoints.wait()  # which raises nothing
        match noticed_by:
            case "settle":
                checkpoints.settle()
            case "finish":
                checkpoints.finish()
            case _:
                checkpoints.save(learner, chat.tokenizer, _state(3))
    for part in (
        "step-000002 can't be written: ",
        "doesn't allow files of this size",
        "Other checkpoints are untouched (step-000001)",
        "--resume",
    ):
        assert part in str(error.value)
    assert _names(checkpoints) == ["step-000001"]
    # Once there is space, the same learner can be saved.
    saved = checkpoints.save(learner, chat.tokenizer, _state(2))
    checkpoints.finish()
    assert find_damage(saved) is None


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_threads_write_shards_without_the_first_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's loader that copies ahead waits for the current GPU, which in a new thread is the first of the machine."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(filesystem, "_OverlappingCpuLoader", Mock(side_effect=AssertionError("waits for a GPU")))
    stored, loaded = torch.arange(3.0), torch.zeros(3)
    LearnerState(None, {}, {"shards": {"weight": stored}}, None).write(tmp_path)
    checkpoint.load({"weight": loaded}, storage_reader=checkpoint.FileSystemReader(tmp_path / "shards"))
    assert torch.equal(loaded, stored)
