"""Small runs to inject faults into, complete and as of their first step, and assertions on runs after a fault."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.run.manifest import find_damage
from metric_lines import without_measured
from safetensors.torch import load_file
from toy_learner import coin_flags, limit_file_size, sft_flags, train_cli

CompleteAndPartialRun = tuple[RunFolder, RunFolder]
"""An uninterrupted run, and its files as of its first step."""
STEPS, SAVED = 3, 1
RL = (
    *("--steps", str(STEPS), "--save-every", "1", "--keep-checkpoints", "9", "--max-failed", "0.05"),
    *("--optimizer.max-skips", "3", "--evaluation.every", "0", "--evaluation.samples", "2", "--evaluation.tasks", "2"),
    *("--algorithm.groups.zero-variance", "keep", "--algorithm.entropy", "0.1", "--warm-start.epochs", "8"),
)
SFT = (
    *(
        "--data.episodes",
        "24",
        "--epochs",
        "1",
        "--save-every",
        "1",
        "--keep-checkpoints",
        "9",
        "--optimizer.max-skips",
        "2",
    ),
    *("--evaluation.tasks", "1", "--evaluation.no-test"),
)


def read_metrics(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the reproducible metrics. Fail if they aren't strict JSON, which has no NaN."""

    def reject_nan(token: str) -> None:
        raise AssertionError(token)

    lines = folder.metrics.read_text().splitlines()
    return without_measured(json.loads(line, parse_constant=reject_nan) for line in lines)


def make_runs(folder: Path, flags: list[str]) -> CompleteAndPartialRun:
    """Run `train` to its end, and copy the run as of its first step."""
    complete = RunFolder(folder / "complete")
    assert train_cli(flags) == 0
    partial = RunFolder(shutil.copytree(complete.path, folder / "partial", symlinks=True))
    for step in range(SAVED + 1, STEPS + 1):
        shutil.rmtree(partial.checkpoints / f"step-{step:06d}")
    for path in (partial.model, partial.rollouts):
        shutil.rmtree(path, ignore_errors=True)
    evaluations = *partial.evaluations.glob(f"step-{STEPS:06d}-*"), *partial.evaluations.glob("test-*")
    for path in (partial.summary, partial.curve, partial.checkpoints / "best", *evaluations):
        path.unlink(missing_ok=True)
    return complete, partial


@pytest.fixture(scope="session")
def rl(tmp_path_factory: pytest.TempPathFactory) -> CompleteAndPartialRun:
    folder = tmp_path_factory.mktemp("rl")
    return make_runs(folder, coin_flags(folder / "complete", *RL))


@pytest.fixture(scope="session")
def sft(tmp_path_factory: pytest.TempPathFactory) -> CompleteAndPartialRun:
    folder = tmp_path_factory.mktemp("sft")
    return make_runs(folder, sft_flags(folder / "complete", *SFT))


def copy_run(run: RunFolder, folder: Path) -> RunFolder:
    """Copy a run to inject faults into."""
    return RunFolder(shutil.copytree(run.path, folder / "run", symlinks=True))


def resume(run: RunFolder) -> int:
    """Return the exit code of `--resume`."""
    return train_cli(["--resume", str(run.path)])


def assert_checkpoints_intact(run: RunFolder, *, steps: int = SAVED) -> None:
    """Assert that there are intact checkpoints with finite weights of the first `steps` steps, and no others."""
    paths = sorted(run.checkpoints.glob("*step-*"))
    assert [path.name for path in paths] == [f"step-{step + 1:06d}" for step in range(steps)]
    for path in paths:
        assert find_damage(path) is None
        assert all(tensor.isfinite().all() for tensor in load_file(path / "model.safetensors").values())


def assert_resumes_identically(run: RunFolder, uninterrupted: RunFolder) -> None:
    """Resume the run, and assert that it ends exactly like the uninterrupted run."""
    assert resume(run) == 0
    assert read_metrics(run) == read_metrics(uninterrupted)
    for name in ("model", f"checkpoints/step-{STEPS:06d}"):
        weights, expected = (load_file(folder.path / name / "model.safetensors") for folder in (run, uninterrupted))
        assert all(torch.equal(weights[key], expected[key]) for key in expected)
    assert [e.score for e in run.read_evaluation(STEPS, "sampled") or []] == [
        e.score for e in uninterrupted.read_evaluation(STEPS, "sampled") or []
    ]


def stderr_text(capfd: pytest.CaptureFixture[str]) -> str:
    """Return stderr on one line; assert that it has no traceback."""
    text = " ".join(capfd.readouterr().err.split())
    assert "Traceback" not in text
    return text


@contextmanager
def full_disk(name: str) -> Generator[None]:
    """Make all writes to files fail while the function with this name runs."""
    module, _, path = name.partition(":")
    owner, _, function = path.rpartition(".")
    target: Any = resolve_name(f"{module}:{owner}" if owner else module)
    original = getattr(target, function)

    def without_space(*args: Any, **kwargs: Any) -> Any:
        with limit_file_size(0):
            return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, function, without_space)
        yield


@contextmanager
def no_space_for(name: str, method: str) -> Generator[None]:
    """Make a method of `Path` fail for paths with this name, as if the disk had no space for another entry."""
    original = getattr(Path, method)

    def without_space(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return original(path, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, method, without_space)
        yield
