"""What can't be written, and metrics that were damaged: a sentence, whole checkpoints, and `--resume` goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agentgym_trainer.run.checkpoint import Checkpoints
from agentgym_trainer.run.disk import WriteError, writing
from agentgym_trainer.run.folder import RunFolder
from faulty_runs import RL, SAVED, STEPS, Begun, copied, full_disk, goes_on, is_healthy, resumed, words
from toy_learner import coin_flags, train_cli

# A full disk.


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
"""The files of a run in the order in which it writes them, and what writes each."""
SAVED_BEFORE = {
    f"evaluations/step-{STEPS:06d}-sampled.jsonl": STEPS - 1,
    **dict.fromkeys(("model", "evaluations/test-000000-sampled.jsonl", "summary.json", "curve.png"), STEPS),
}
"""Up to which step there are checkpoints when it can't be written."""


@pytest.mark.long
def test_a_disk_that_is_full_at_a_write_ends_in_a_sentence(
    rl: Begun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, begun = rl
    run = copied(begun, tmp_path)
    for file, write in WRITES.items():
        with full_disk(write):
            assert resumed(run) == 1, file
        said = words(capfd)
        assert f"error: {run.path / file} can't be written: " in said
        assert "GiB free; make space and continue with --resume" in said
        assert not list(run.path.glob(".*"))
        is_healthy(run, steps=SAVED_BEFORE.get(file, SAVED))
    goes_on(run, whole)


def test_every_file_of_a_run_is_written_by_one_of_these(rl: Begun) -> None:
    whole, _ = rl
    known = {Path(file).parts[0] for file in (*WRITES, "start")}
    assert {path.name for path in whole.path.iterdir()} == known


@pytest.mark.parametrize(
    ("file", "write", "then"),
    [
        ("run.json", "agentgym_trainer.run.folder:_write", "run the same command again"),
        pytest.param(
            "start", "agentgym_trainer.trainers.rl:save_start", "continue with --resume", marks=pytest.mark.long
        ),
    ],
)
def test_so_does_one_that_is_full_at_the_beginning(
    file: str, write: str, then: str, rl: Begun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, flags = RunFolder(tmp_path / "run"), coin_flags(tmp_path / "run", *RL)
    with full_disk(write):
        assert train_cli(flags) == 1
    said = words(capfd)
    assert f"error: {run.path / file} can't be written: " in said
    assert f"GiB free; make space and {then}." in said
    if file == "run.json":
        assert not run.path.exists()
    else:
        assert not run.start.exists()
        assert not list(run.path.glob(".*"))
        goes_on(run, rl[0])


def test_free_space_is_named_only_where_there_is_too_little(tmp_path: Path) -> None:
    with (
        pytest.raises(
            WriteError, match=r"nowhere/a can't be written: .*\. Fix that and continue with --resume\.$"
        ) as told,
        writing(tmp_path / "nowhere" / "a"),
    ):
        (tmp_path / "nowhere" / "a").write_text("")
    assert "GiB" not in str(told.value)
    with pytest.raises(ZeroDivisionError), writing(tmp_path):
        _ = 1 / 0


# Metrics that a power cut or anybody has damaged.


def _cut_half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _damage(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(b"\x00\xff" + content[2:])


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "half": _cut_half,
    "damaged": _damage,
    "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
    "no record": lambda path: path.write_text("[]\n"),
}


@pytest.mark.long
def test_metrics_come_back_from_the_checkpoint(rl: Begun, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole, begun = rl
    run = copied(begun, tmp_path)
    kept = run.checkpoints / f"step-{SAVED:06d}" / "metrics.jsonl"
    for damage in DAMAGE.values():
        run.metrics.write_text(kept.read_text())
        assert run.rewind(SAVED, kept) is None
        damage(run.metrics)
        assert str(run.metrics) in (run.rewind(SAVED, kept) or "")
        assert run.metrics.read_text() == kept.read_text()
    _cut_half(run.metrics)
    goes_on(run, whole)
    sentence = f"{run.metrics} is damaged or lacks steps up to {SAVED}; it was replaced by the copy in {kept.parent}."
    assert sentence in words(capfd)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("damaged", "metrics.jsonl, line 1 is damaged: "),
        ("half", "metrics.jsonl doesn't have exactly one line for each of the 1 completed steps"),
    ],
)
def test_without_a_copy_they_are_refused_in_a_sentence(
    how: str, sentence: str, rl: Begun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, begun = rl
    run = copied(begun, tmp_path)
    checkpoint = run.checkpoints / f"step-{SAVED:06d}"
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["files"]["metrics.jsonl"]  # as checkpoints were sealed before they had it
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    (checkpoint / "metrics.jsonl").unlink()
    run.metrics.write_text(run.metrics.read_text().splitlines(keepends=True)[0])
    DAMAGE[how](run.metrics)
    before = run.metrics.read_bytes()
    assert resumed(run) == 2
    assert sentence in words(capfd)
    assert run.metrics.read_bytes() == before


@pytest.mark.long
def test_the_checkpoints_of_a_run_hold_its_metrics(rl: Begun, sft: Begun) -> None:
    for whole, _ in (rl, sft):
        for step in range(1, STEPS + 1):
            copy = Checkpoints(whole.checkpoints, keep=9, say=print).at(step) / "metrics.jsonl"
            assert [json.loads(line)["step"] for line in copy.read_text().splitlines()] == list(range(1, step + 1))
