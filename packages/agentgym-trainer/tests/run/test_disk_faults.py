"""Tests of write errors and damaged metrics: the error message, intact checkpoints, and `--resume`."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agentgym_trainer.run.checkpoint import Checkpoints
from agentgym_trainer.run.checkpoint_files import LearnerState
from agentgym_trainer.run.disk import WriteError, writing
from agentgym_trainer.run.folder import RunFolder
from faulty_runs import (
    RL,
    SAVED,
    STEPS,
    CompleteAndPartialRun,
    assert_checkpoints_intact,
    assert_resumes_identically,
    copy_run,
    full_disk,
    no_space_for,
    resume,
    stderr_text,
)
from toy_learner import coin_flags, train_cli

# Full disk.


WRITES = {
    "run.json": "agentgym_trainer.run.folder:RunFolder.rewind",
    f"rollouts/step-{SAVED + 1:06d}.jsonl": "agentgym_trainer.run.folder:RunFolder.save_rollouts",
    "metrics.jsonl": "agentgym_trainer.run.folder:RunFolder.log",
    f"checkpoints/step-{SAVED + 1:06d}": "agentgym_trainer.run.checkpoint:Checkpoints.save",
    f"evaluations/step-{STEPS:06d}-sampled.jsonl": "agentgym_trainer.run.folder:RunFolder.save_evaluation",
    "model": "agentgym_trainer.trainers.rl:export_model",
    "evaluations/test-000000-sampled.jsonl": "agentgym_trainer.run.folder:RunFolder.save_evaluation",
    "summary.json": "agentgym_trainer.run.summary:_write_summary",
    "curve.png": "agentgym_trainer.run.summary:draw_curve",
}
"""The files of a run in the order of writing, with the function that writes each."""
SAVED_BEFORE = {
    f"evaluations/step-{STEPS:06d}-sampled.jsonl": STEPS - 1,
    **dict.fromkeys(("model", "evaluations/test-000000-sampled.jsonl", "summary.json", "curve.png"), STEPS),
}
"""The step of the last checkpoint if the file can't be written."""


@pytest.mark.long
def test_full_disk_at_any_write_ends_with_an_error_message(
    rl: CompleteAndPartialRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    complete, partial = rl
    run = copy_run(partial, tmp_path)
    for file, write in WRITES.items():
        with full_disk(write):
            assert resume(run) == 1, file
        error = stderr_text(capfd)
        assert f"error: {run.path / file} can't be written: " in error
        assert "doesn't allow files of this size; raise the limit and continue with --resume" in error
        assert not list(run.path.glob(".*"))
        assert_checkpoints_intact(run, steps=SAVED_BEFORE.get(file, SAVED))
    assert_resumes_identically(run, complete)


@pytest.mark.long
def test_full_disk_at_the_name_of_a_checkpoint_ends_with_an_error_message(
    rl: CompleteAndPartialRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    complete, partial = rl
    run, name = copy_run(partial, tmp_path), f"step-{SAVED + 1:06d}"
    for entry, method, file, others in (
        (f".{name}", "rename", f"checkpoints/{name}", f"step-{SAVED:06d}"),
        (".best", "symlink_to", "checkpoints", f"step-{SAVED:06d}, {name}, step-{STEPS:06d}"),
    ):
        with no_space_for(entry, method):
            assert resume(run) == 1, entry
        error = stderr_text(capfd)
        assert f"error: {run.path / file} can't be written: [Errno 28] No space left on device" in error
        assert f"make space and continue with --resume. Other checkpoints are untouched ({others})." in error
    assert_resumes_identically(run, complete)


@pytest.mark.long
def test_full_disk_while_saving_in_the_background_ends_with_an_error_message(
    rl: CompleteAndPartialRun, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, write, written = RunFolder(tmp_path / "run"), LearnerState.write, []

    def full(state: LearnerState, folder: Path) -> None:
        written.append(folder.name)
        if len(written) == SAVED + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(state, folder)

    monkeypatch.setattr(LearnerState, "write", full)
    assert train_cli(coin_flags(run.path, *RL, "--save-async", "on")) == 1
    error = stderr_text(capfd)
    assert (
        f"error: {run.checkpoints}/step-{SAVED + 1:06d} can't be written: [Errno 28] No space left on device" in error
    )
    assert f"continue with --resume. Other checkpoints are untouched (step-{SAVED:06d})" in error
    assert_checkpoints_intact(run)
    assert_resumes_identically(run, rl[0])


def test_all_files_of_a_run_are_covered(rl: CompleteAndPartialRun) -> None:
    complete, _ = rl
    known = {Path(file).parts[0] for file in (*WRITES, "evaluations.json", "start", "vocabulary.json.gz", "warm_start")}
    assert {path.name for path in complete.path.iterdir()} == known


@pytest.mark.parametrize(
    ("file", "write", "advice"),
    [
        ("run.json", "agentgym_trainer.run.folder:_write", "run the same command again"),
        pytest.param(
            "warm_start/demonstrations.jsonl",
            "agentgym_trainer.run.folder:RunFolder.save_demonstrations",
            "continue with --resume",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "start", "agentgym_trainer.trainers.warm_start:save_model", "continue with --resume", marks=pytest.mark.long
        ),
        pytest.param(
            "vocabulary.json.gz",
            "agentgym_trainer.trainers.setup:write_vocabulary",
            "continue with --resume",
            marks=pytest.mark.long,
        ),
    ],
)
def test_full_disk_at_startup_ends_with_an_error_message(
    file: str, write: str, advice: str, rl: CompleteAndPartialRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, flags = RunFolder(tmp_path / "run"), coin_flags(tmp_path / "run", *RL)
    with full_disk(write):
        assert train_cli(flags) == 1
    error = stderr_text(capfd)
    assert f"error: {run.path / file} can't be written: " in error
    assert f"doesn't allow files of this size; raise the limit and {advice}." in error
    if file == "run.json":
        assert not run.path.exists()
    else:
        assert not (run.path / file).exists()
        assert not list(run.path.glob(".*"))
        assert_resumes_identically(run, rl[0])


@pytest.mark.parametrize("resumed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_full_disk_at_the_lock_ends_with_an_error_message(
    resumed: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    path, then = tmp_path / "run", "run the same command again"
    flags = coin_flags(path, *RL)
    if resumed:
        copy_run(request.getfixturevalue("rl")[1], tmp_path)
        flags, then = ["--resume", str(path)], "continue with --resume"
    with full_disk("agentgym_eval.storage.lock:FolderLock.acquire"):
        assert train_cli(flags) == 1
    error = stderr_text(capfd)
    assert f"error: {path} can't be written: [Errno 27] File too large. " in error
    assert f"raise the limit and {then}." in error


@pytest.mark.long
def test_full_disk_in_a_warm_start_ends_with_an_error_message(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder(tmp_path / "run")
    dagger = ("--warm-start.dagger.rounds", "1", "--warm-start.dagger.episodes", "8", "--warm-start.epochs", "1")
    arguments = coin_flags(run.path, *RL, *dagger)
    for fault, file in (
        (no_space_for("warm_start", "mkdir"), "warm_start"),
        (full_disk("agentgym_trainer.trainers.stored_play:Store.__enter__"), "warm_start/playing-0001"),
        (full_disk("agentgym_trainer.trainers.stored_play:Store._begin"), "warm_start/playing-0001"),
    ):
        with fault:
            assert train_cli(arguments) == 1, file
        assert f"error: {run.path / file} can't be written: " in stderr_text(capfd)
        arguments = ["--resume", str(run.path)]
    assert train_cli(arguments) == 0


@pytest.mark.parametrize(
    ("code", "free_inodes", "advice"),
    [
        (errno.ENOSPC, 9, "The file system has 0.50 GiB free, of which a quota may allow less; make space"),
        (errno.ENOSPC, 0, "The file system has no free inodes; delete files"),
        (errno.EDQUOT, 9, "Your disk quota is used up; make space or raise the quota"),
        (errno.EFBIG, 9, "The file system or `ulimit -f` doesn't allow files of this size; raise the limit"),
        (errno.EACCES, 9, "Fix that"),
    ],
)
def test_error_names_the_limit_that_was_reached(
    code: int, free_inodes: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_system = SimpleNamespace(f_bavail=1 << 17, f_frsize=1 << 12, f_files=99, f_favail=free_inodes)
    monkeypatch.setattr("agentgym_trainer.run.disk.os.statvfs", lambda _: file_system)
    with pytest.raises(WriteError) as error, writing(tmp_path / "a"):
        raise OSError(code, os.strerror(code))
    assert str(error.value).endswith(f"{os.strerror(code)}. {advice} and continue with --resume.")


def test_free_space_is_reported_only_for_a_full_disk(tmp_path: Path) -> None:
    with (
        pytest.raises(
            WriteError, match=r"nowhere/a can't be written: .*\. Fix that and continue with --resume\.$"
        ) as error,
        writing(tmp_path / "nowhere" / "a"),
    ):
        (tmp_path / "nowhere" / "a").write_text("")
    assert "GiB" not in str(error.value)
    with pytest.raises(ZeroDivisionError), writing(tmp_path):
        _ = 1 / 0


# Damaged metrics.


def _truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _overwrite_start(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(b"\x00\xff" + content[2:])


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "half": _truncate,
    "damaged": _overwrite_start,
    "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
    "no record": lambda path: path.write_text("[]\n"),
}


@pytest.mark.long
def test_damaged_metrics_are_restored_from_the_checkpoint(
    rl: CompleteAndPartialRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    complete, partial = rl
    run = copy_run(partial, tmp_path)
    copy = run.checkpoints / f"step-{SAVED:06d}" / "metrics.jsonl"
    for damage in DAMAGE.values():
        run.metrics.write_text(copy.read_text())
        assert run.rewind(SAVED, copy) is None
        damage(run.metrics)
        assert str(run.metrics) in (run.rewind(SAVED, copy) or "")
        assert run.metrics.read_text() == copy.read_text()
    _truncate(run.metrics)
    assert_resumes_identically(run, complete)
    message = f"{run.metrics} is damaged or lacks steps up to {SAVED}; it was replaced by the copy in {copy.parent}."
    assert message in stderr_text(capfd)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("damaged", "metrics.jsonl, line 1 is damaged: "),
        ("half", "metrics.jsonl doesn't have exactly one line for each of the 1 completed steps"),
    ],
)
def test_damaged_metrics_without_a_copy_raise_an_error(
    damage: str, message: str, rl: CompleteAndPartialRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, partial = rl
    run = copy_run(partial, tmp_path)
    checkpoint = run.checkpoints / f"step-{SAVED:06d}"
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["files"]["metrics.jsonl"]  # as in checkpoints of older versions
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    (checkpoint / "metrics.jsonl").unlink()
    run.metrics.write_text(run.metrics.read_text().splitlines(keepends=True)[0])
    DAMAGE[damage](run.metrics)
    before = run.metrics.read_bytes()
    assert resume(run) == 2
    assert message in stderr_text(capfd)
    assert run.metrics.read_bytes() == before


@pytest.mark.long
def test_checkpoints_contain_the_metrics(rl: CompleteAndPartialRun, sft: CompleteAndPartialRun) -> None:
    for complete, _ in (rl, sft):
        for step in range(1, STEPS + 1):
            copy = Checkpoints(complete.checkpoints, keep=9, say=print).at(step) / "metrics.jsonl"
            assert [json.loads(line)["step"] for line in copy.read_text().splitlines()] == list(range(1, step + 1))
