"""Tests that RL runs continue bit for bit after being killed, preempted or damaged."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agentgym_envs import read_episodes
from agentgym_trainer.run.checkpoint import Checkpoints
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.run.manifest import find_damage
from forked_processes import train_with_hanging_environment, train_with_signals
from metric_lines import without_measured
from quantized_models import require_bitsandbytes
from safetensors.torch import load_file
from toy_learner import SignalPoint, coin_flags, limit_file_size, train_cli

pytestmark = pytest.mark.long

COMMON = (
    *("--horizon", "adaptive", "--horizon.stages", "1", "2", "3", "--horizon.at-least", "2", "--horizon.patience", "1"),
    # With four tasks, the confidence bound is so wide that only a large gain ends a stage.
    *("--horizon.gain", "1", "--sampler", "mid-success", "--evaluation.every", "2"),
)
AUXILIARY = ("--imitation.weight", "0.3", "--imitation.data.episodes", "12", "--imitation.batch", "5")
AGENT = ("--world.agent", "bare+plan+window:1+retry")
KINDS: dict[str, tuple[str, ...]] = {
    "grpo": COMMON,
    "ppo": (*COMMON, *AUXILIARY, "--algorithm", "ppo", "--critic.lr", "1e-2", "--optimizer.schedule", "cosine"),
    "qlora": (*COMMON, "--lora.rank", "2", "--lora.quantize", "nf4", "--scratch.hidden", "64", "--algorithm", "ppo"),
    "lora": (
        *(*COMMON, *AGENT, "--lora.rank", "2"),
        *("--algorithm", "ppo", "--critic.where", "separate", "--critic.lr", "1e-2"),
        *("--distillation.expert", "oracle", "--distillation.fraction", "0.5", "--distillation.schedule", "cosine"),
    ),
}
LOG = ("agentgym_trainer.run.folder:RunFolder", "log")


def _flags(out: Path, kind: str) -> list[str]:
    flags = coin_flags(out)
    i = flags.index("--horizon.turns")
    return [*flags[:i], *flags[i + 2 :], *KINDS[kind]]


@pytest.fixture(scope="module")
def uninterrupted_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunFolder]:
    """A function that returns the uninterrupted run of a kind."""

    @cache
    def run(kind: str) -> RunFolder:
        folder = RunFolder(tmp_path_factory.mktemp(kind) / "run")
        assert train_cli(_flags(folder.path, kind)) == 0
        return folder

    return run


def _metrics(folder: RunFolder) -> list[dict[str, Any]]:
    return without_measured(folder.read_metrics())


def _episodes(folder: RunFolder) -> dict[str, list[dict[str, Any]]]:
    """Return the episodes of every evaluation, without timings."""
    return {
        path.name: [json.loads(e.to_json()) | {"seconds": None} for e in read_episodes(path)]
        for path in sorted(folder.evaluations.iterdir())
    }


def _content(path: Path) -> Any:
    """Return the content of a file for an exact comparison; None for files that may differ between runs."""
    if path.suffix == ".bin":
        return torch.load(path)
    if path.suffix == ".safetensors":
        return load_file(path)
    if path.name == "metrics.jsonl":
        return without_measured(map(json.loads, path.read_text().splitlines()))
    # Random generators are compared by their effects; manifests and adapters contain paths and hashes.
    return (
        None
        if path.suffix in (".pkl", ".md") or path.name in ("manifest.json", "adapter_config.json")
        else path.read_bytes()
    )


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_same(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(_same, first, second))
    return torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second


def _assert_same(run: RunFolder, expected: RunFolder, *, earlier: bool = True) -> None:
    """Assert that two runs are identical except for times. Without `earlier`, compare the last checkpoint only."""
    assert _metrics(run) == _metrics(expected)
    assert _episodes(run) == _episodes(expected)
    files = [path.relative_to(expected.path) for path in expected.path.rglob("*") if path.is_file()]
    compared = [file for file in files if file.parts[0] in ("checkpoints", "model", "start")]
    assert {file.parts[1] for file in compared if file.parts[0] == "checkpoints"} >= {"step-000004", "step-000006"}
    for file in (file for file in compared if earlier or file.parts[1] != "step-000004"):
        assert _same(_content(run.path / file), _content(expected.path / file)), file
    if earlier:
        assert sorted(path.name for path in run.checkpoints.iterdir()) == sorted(
            path.name for path in expected.checkpoints.iterdir()
        )
    assert run.checkpoints.joinpath("best").readlink() == expected.checkpoints.joinpath("best").readlink()


def _interrupt_run(
    points: Sequence[SignalPoint], folder: Path, kind: str, *, resume: bool = False
) -> tuple[RunFolder, int | None, str]:
    """Run `train` in another process; return the run folder, the exit code and stderr."""
    run, log = RunFolder(folder / "run"), folder / "log"
    arguments = ["--resume", str(run.path)] if resume else _flags(run.path, kind)
    code = train_with_signals(points[0], arguments, log, *points[1:])
    return run, code, log.read_text()


def _latest(run: RunFolder) -> str | None:
    """Return the name of the last intact checkpoint."""
    checkpoint = Checkpoints(run.checkpoints, keep=2, say=print).latest()
    return checkpoint.name if checkpoint else None


# Kills.

KILL_POINTS = {
    "imitating": (SignalPoint("agentgym_trainer.learner.learner:Learner", "update", 20), None),
    "evaluating": (SignalPoint("agentgym_trainer.run.folder:RunFolder", "save_evaluation", 1), None),
    "before the first checkpoint": (SignalPoint(*LOG, 1), None),
    # 36 optimizer steps of imitation, then 4 in each step.
    "in a step": (SignalPoint("agentgym_trainer.learner.learner:Learner", "_step", 36 + 3 * 4 + 2), "step-000002"),
    # Optimizer, schedule and generators are three files, so this interrupts the second checkpoint.
    "between a checkpoint's files": (SignalPoint("torch", "save", 4), "step-000002"),
    "between seal and name": (SignalPoint("agentgym_trainer.run.checkpoint", "seal", 2), "step-000004"),
}  # fmt: skip
STATE = "agentgym_trainer.run.checkpoint_files:LearnerState"
BACKGROUND = ("--save-async", "on")
BACKGROUND_KILLS = {
    # Weights and optimizer are written by a thread, while the main one trains on.
    "before the second state": (SignalPoint(STATE, "of", 2), "step-000002"),
    "between state and seal": (SignalPoint(STATE, "write", 2), "step-000002"),
    "between seal and name": (SignalPoint("agentgym_trainer.run.checkpoint", "seal", 2), "step-000004"),
}
KILLS = [("ppo", name) for name in KILL_POINTS]
KILLS += [("lora", "in a step"), ("qlora", "in a step")]


@pytest.mark.parametrize(("kind", "name"), KILLS)
def test_killed_runs_resume_bit_for_bit(
    kind: str, name: str, tmp_path: Path, uninterrupted_run: Callable[[str], RunFolder]
) -> None:
    if kind == "qlora":
        require_bitsandbytes()
    point, latest = KILL_POINTS[name]
    run, code, stderr = _interrupt_run([point], tmp_path, kind)
    assert code == -signal.SIGKILL, stderr
    assert run.start.exists() == (name != "imitating")
    assert _latest(run) == latest
    # A killed process may also leave half-written files.
    with run.metrics.open("a") as lines:
        lines.write('{"step": 99, "succ')
    (run.path / ".start").mkdir(exist_ok=True)
    assert train_cli(["--resume", str(run.path)]) == 0
    _assert_same(run, uninterrupted_run(kind))


@pytest.mark.parametrize("name", BACKGROUND_KILLS)
def test_runs_killed_while_saving_in_the_background_resume_bit_for_bit(
    name: str, tmp_path: Path, uninterrupted_run: Callable[[str], RunFolder]
) -> None:
    point, latest = BACKGROUND_KILLS[name]
    run, log = RunFolder(tmp_path / "run"), tmp_path / "log"
    code = train_with_signals(point, [*_flags(run.path, "ppo"), *BACKGROUND], log)
    assert code == -signal.SIGKILL, log.read_text()
    assert _latest(run) == latest
    assert train_cli(["--resume", str(run.path)]) == 0
    _assert_same(run, uninterrupted_run("ppo"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_runs_end_once_the_checkpoint_is_whole(
    number: int, code: int, tmp_path: Path, uninterrupted_run: Callable[[str], RunFolder]
) -> None:
    run, log = RunFolder(tmp_path / "run"), tmp_path / "log"
    # Sent when the state of step 2 has been written, so that its checkpoint, or that of step 3, is under way.
    point = SignalPoint(STATE, "write", 1, number)
    assert train_with_signals(point, [*_flags(run.path, "ppo"), *BACKGROUND], log) == code, log.read_text()
    assert "Traceback" not in log.read_text()
    assert not list(run.checkpoints.glob(".step-*"))
    assert _latest(run) in ("step-000002", "step-000003")
    assert train_cli(["--resume", str(run.path)]) == 0
    _assert_same(run, uninterrupted_run("ppo"), earlier=False)


def test_the_interrupted_run_has_state_to_restore(uninterrupted_run: Callable[[str], RunFolder]) -> None:
    run = uninterrupted_run("ppo")
    stages = [line["stage"]["number"] for line in run.read_metrics()]
    assert stages[0] == 0
    assert stages[-1] > 0
    progress = json.loads((run.checkpoints / "step-000006" / "progress.json").read_text())
    assert len(set(progress["sampler"].values())) > 1
    assert progress["best"]["step"] in (2, 4, 6)


def test_ctrl_c_saves_and_prints_the_resume_command(
    tmp_path: Path, uninterrupted_run: Callable[[str], RunFolder]
) -> None:
    run, code, stderr = _interrupt_run([SignalPoint(*LOG, 3, signal.SIGINT)], tmp_path, "ppo")
    assert code == 130, stderr
    assert "Stopping after this step; Ctrl-C again stops immediately." in stderr
    assert f"Saved after step 3; resume with: uv run train --resume {run.path}\n" in stderr
    assert "Traceback" not in stderr
    assert _latest(run) == "step-000003"
    assert train_cli([f"--resume={run.path}"]) == 0
    _assert_same(run, uninterrupted_run("ppo"))


def test_ctrl_c_during_imitation_prints_the_resume_command(tmp_path: Path) -> None:
    point = SignalPoint("agentgym_trainer.learner.learner:Learner", "update", 20, signal.SIGINT)
    run, code, stderr = _interrupt_run([point], tmp_path, "ppo")
    assert code == 130, stderr
    assert f"Interrupted; resume with: uv run train --resume {run.path}\n" in stderr
    assert "Traceback" not in stderr
    assert not run.start.exists()


# Preemption.

REPLY = ("agentgym_trainer.rollout.runner:EnginePolicy", "reply")
STEP = ("agentgym_trainer.learner.learner:Learner", "_step")


def _preempt(folder: Path, kind: str, *points: SignalPoint, resume: bool = False) -> RunFolder:
    """Run `train` until the first signal ends it; assert that it printed how to resume, and return its folder."""
    run, code, stderr = _interrupt_run(points, folder, kind, resume=resume)
    assert code == 128 + points[0].signal, stderr
    assert f"resume with: uv run train --resume {run.path}\n" in stderr
    assert "Traceback" not in stderr
    assert not (run.path / ".lock").exists()
    return run


@pytest.mark.parametrize(("kind", "seed"), [("ppo", 0), ("grpo", 1)])
def test_runs_preempted_at_random_points_resume_bit_for_bit(
    kind: str, seed: int, tmp_path: Path, uninterrupted_run: Callable[[str], RunFolder]
) -> None:
    rng = np.random.default_rng(seed)
    # There are two evaluations before training and two after step 2. The second signal comes during saving.
    evaluating = SignalPoint("agentgym_trainer.trainers.evaluation:Evaluator", "_group_specs", 3, signal.SIGUSR1)
    run = _preempt(
        tmp_path, kind, evaluating, SignalPoint("agentgym_trainer.run.checkpoint", "seal", 1, signal.SIGTERM)
    )
    assert _progress(run)["step"] == 2
    assert _progress(run)["learned"] is not None
    # From this reply on, none returns, so the rollout can't finish.
    playing = SignalPoint(*REPLY, int(rng.integers(1, 60)), signal.SIGTERM, forever=True)
    _preempt(tmp_path, kind, playing, resume=True)
    previous_step = _progress(run)["step"]
    _preempt(tmp_path, kind, SignalPoint(*STEP, int(rng.integers(1, 8)), signal.SIGUSR1), resume=True)
    assert _progress(run)["step"] > previous_step, "an update in progress is finished"
    assert train_cli(["--resume", str(run.path)]) == 0
    _assert_same(run, uninterrupted_run(kind), earlier=False)


def test_sigterm_saves_and_ends_a_run_in_which_an_environment_hangs(
    tmp_path: Path, uninterrupted_run: Callable[[str], RunFolder]
) -> None:
    run, log = RunFolder(tmp_path / "run"), tmp_path / "log"
    assert train_with_hanging_environment(4, _flags(run.path, "grpo"), run.path, log) == 128 + signal.SIGTERM
    stderr = log.read_text()
    assert f"Terminated. Progress is saved; resume with: uv run train --resume {run.path}\n" in stderr
    assert "A rollout didn't end within 10 seconds, since an environment's step or the engine blocks" in stderr
    assert "Traceback" not in stderr
    assert not (run.path / ".lock").exists()
    assert _latest(run) == "step-000003"
    assert train_cli(["--resume", str(run.path)]) == 0
    _assert_same(run, uninterrupted_run("grpo"), earlier=False)


def test_runs_preempted_before_training_resume_with_the_played_demonstrations(
    tmp_path: Path, uninterrupted_run: Callable[[str], RunFolder]
) -> None:
    run = _preempt(tmp_path, "ppo", SignalPoint("agentgym_trainer.cli", "_open", 1, signal.SIGUSR1))
    assert [path.name for path in run.path.iterdir()] == ["run.json"]
    playing = SignalPoint("agentgym_trainer.rollout.environments:OpenEnvironment", "play", 1, signal.SIGUSR1)
    _preempt(tmp_path, "ppo", playing, resume=True)
    assert not run.demonstrations.exists()
    imitating = SignalPoint("agentgym_trainer.learner.learner:Learner", "update", 20, signal.SIGTERM)
    _preempt(tmp_path, "ppo", imitating, resume=True)
    assert not run.start.exists()
    assert not run.checkpoints.exists()
    played = run.demonstrations.stat().st_ino
    assert train_cli(["--resume", str(run.path)]) == 0
    assert run.demonstrations.stat().st_ino == played
    _assert_same(run, uninterrupted_run("ppo"), earlier=False)


def _progress(run: RunFolder) -> dict[str, Any]:
    return json.loads((run.checkpoints / str(_latest(run)) / "progress.json").read_text())


# Damaged checkpoints.


@pytest.fixture
def copied_run(tmp_path: Path, uninterrupted_run: Callable[[str], RunFolder]) -> RunFolder:
    """A copy of a finished run, without its model."""
    shutil.copytree(uninterrupted_run("ppo").path, tmp_path / "run", symlinks=True)
    shutil.rmtree(tmp_path / "run" / "model")
    return RunFolder(tmp_path / "run")


def _flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_damaged_checkpoints_are_named_and_skipped(
    copied_run: RunFolder, uninterrupted_run: Callable[[str], RunFolder], capfd: pytest.CaptureFixture[str]
) -> None:
    _flip_bit(copied_run.checkpoints / "step-000006" / "optimizer.bin")
    assert train_cli(["--resume", str(copied_run.path)]) == 0
    stderr = " ".join(capfd.readouterr().err.split())
    assert (
        "Skipping checkpoint step-000006 (optimizer.bin has other content than was written): it is damaged." in stderr
    )
    _assert_same(copied_run, uninterrupted_run("ppo"))


def test_runs_with_only_damaged_checkpoints_are_rejected_unchanged(
    copied_run: RunFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    for path in copied_run.checkpoints.glob("step-*"):
        (path / "manifest.json").unlink()
    before = {path: path.read_bytes() for path in copied_run.path.rglob("*") if path.is_file()}
    assert train_cli(["--resume", str(copied_run.path)]) == 2
    stderr = " ".join(capfd.readouterr().err.split())
    assert (
        f"All checkpoints in {copied_run.checkpoints} are damaged: step-000006 (manifest.json is missing); " in stderr
    )
    assert "Traceback" not in stderr
    assert {path: path.read_bytes() for path in copied_run.path.rglob("*") if path.is_file()} == before


def test_runs_ended_by_a_full_disk_resume_once_there_is_space(
    copied_run: RunFolder, uninterrupted_run: Callable[[str], RunFolder], capfd: pytest.CaptureFixture[str]
) -> None:
    last, previous = (copied_run.checkpoints / f"step-00000{step}" for step in (6, 4))
    size = (last / "optimizer.bin").stat().st_size
    shutil.rmtree(last)
    with limit_file_size(size - 1):
        assert train_cli(["--resume", str(copied_run.path)]) == 1
    stderr = " ".join(capfd.readouterr().err.split())
    assert f"error: {last} can't be written: " in stderr
    assert "Traceback" not in stderr
    assert find_damage(previous) is None
    assert train_cli(["--resume", str(copied_run.path)]) == 0
    _assert_same(copied_run, uninterrupted_run("ppo"))
