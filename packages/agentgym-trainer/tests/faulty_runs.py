"""Runs of a second that faults are injected into: as they are when nothing disturbs them, and as they lie on the disk
after their first step; and what must hold of them after a fault.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from agentgym_trainer.run.checkpoint import find_damage
from agentgym_trainer.run.folder import RunFolder
from safetensors.torch import load_file
from toy_learner import coin_flags, files_up_to, sft_flags, train_cli

Begun = tuple[RunFolder, RunFolder]
"""A run that nothing disturbed, and what lay there of it after its first step."""
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


def lines_of(folder: RunFolder) -> list[dict[str, Any]]:
    """The metrics without timings. A bare NaN in them is no JSON."""

    def refuse(token: str) -> None:
        raise AssertionError(token)

    lines = [json.loads(line, parse_constant=refuse) for line in folder.metrics.read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in ("seconds", "tokens_per_s")} for line in lines]


def begun(folder: Path, flags: list[str]) -> Begun:
    """The run with these flags."""
    whole = RunFolder(folder / "whole")
    assert train_cli(flags) == 0
    first = RunFolder(shutil.copytree(whole.path, folder / "begun", symlinks=True))
    for step in range(SAVED + 1, STEPS + 1):
        shutil.rmtree(first.checkpoints / f"step-{step:06d}")
    for path in (first.model, first.rollouts):
        shutil.rmtree(path, ignore_errors=True)
    evaluations = *first.evaluations.glob(f"step-{STEPS:06d}-*"), *first.evaluations.glob("test-*")
    for path in (first.summary, first.curve, first.checkpoints / "best", *evaluations):
        path.unlink(missing_ok=True)
    return whole, first


@pytest.fixture(scope="session")
def rl(tmp_path_factory: pytest.TempPathFactory) -> Begun:
    folder = tmp_path_factory.mktemp("rl")
    return begun(folder, coin_flags(folder / "whole", *RL))


@pytest.fixture(scope="session")
def sft(tmp_path_factory: pytest.TempPathFactory) -> Begun:
    folder = tmp_path_factory.mktemp("sft")
    return begun(folder, sft_flags(folder / "whole", *SFT))


def copied(begun: RunFolder, folder: Path) -> RunFolder:
    """A copy to inject faults into."""
    return RunFolder(shutil.copytree(begun.path, folder / "run", symlinks=True))


def resumed(run: RunFolder) -> int:
    """The exit code of `--resume`."""
    return train_cli(["--resume", str(run.path)])


def is_healthy(run: RunFolder, *, steps: int = SAVED) -> None:
    """Whole checkpoints of finite weights, up to this step."""
    found = sorted(run.checkpoints.glob("*step-*"))
    assert [path.name for path in found] == [f"step-{step + 1:06d}" for step in range(steps)]
    for path in found:
        assert find_damage(path) is None
        assert all(tensor.isfinite().all() for tensor in load_file(path / "model.safetensors").values())


def goes_on(run: RunFolder, whole: RunFolder) -> None:
    """To the same end as the run that nothing disturbed, to the bit."""
    assert resumed(run) == 0
    assert lines_of(run) == lines_of(whole)
    for name in ("model", f"checkpoints/step-{STEPS:06d}"):
        one, other = (load_file(folder.path / name / "model.safetensors") for folder in (run, whole))
        assert all(torch.equal(one[key], other[key]) for key in other)
    assert [e.score for e in run.read_evaluation(STEPS, "sampled") or []] == [
        e.score for e in whole.read_evaluation(STEPS, "sampled") or []
    ]


def words(capfd: pytest.CaptureFixture[str]) -> str:
    """What was said on stderr, on one line; a traceback is not among it."""
    said = " ".join(capfd.readouterr().err.split())
    assert "Traceback" not in said
    return said


@contextmanager
def full_disk(name: str) -> Generator[None]:
    """No file can be written while this function runs."""
    module, _, path = name.partition(":")
    owner, _, function = path.rpartition(".")
    holder: Any = resolve_name(f"{module}:{owner}" if owner else module)
    original = getattr(holder, function)

    def cramped(*given: Any, **more: Any) -> Any:
        with files_up_to(0):
            return original(*given, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holder, function, cramped)
        yield
