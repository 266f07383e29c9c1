"""Runs that were killed, or whose checkpoints were damaged, and went on: nothing of it shows in what they leave."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agentgym_envs import read_episodes
from agentgym_trainer.run.checkpoint import Checkpoints, find_damage
from agentgym_trainer.run.folder import RunFolder
from forked_processes import train_until
from safetensors.torch import load_file
from toy_learner import Moment, coin_flags, files_up_to, train_cli

pytestmark = pytest.mark.long

COMMON = (
    *("--horizon", "adaptive", "--horizon.stages", "1", "2", "3", "--horizon.at-least", "2", "--horizon.patience", "1"),
    # Four tasks leave so wide a confidence bound that only a large gain lets a stage end.
    *("--horizon.gain", "1", "--sampler", "mid-success", "--evaluation.every", "2"),
)
BESIDE = ("--imitation.weight", "0.3", "--imitation.data.episodes", "12", "--imitation.batch", "5")
AGENT = ("--world.agent", "bare+plan+window:1+retry")
KINDS: dict[str, tuple[str, ...]] = {
    "grpo": COMMON,
    "ppo": (*COMMON, *BESIDE, "--algorithm", "ppo", "--critic.lr", "1e-2", "--optimizer.schedule", "cosine"),
    "lora": (
        *(*COMMON, *AGENT, "--lora.rank", "2", "--lora.dropout", "0.1"),
        *("--algorithm", "ppo", "--critic.where", "separate", "--critic.lr", "1e-2"),
    ),
}
LOG = ("agentgym_trainer.run.folder:RunFolder", "log")


def _flags(out: Path, kind: str) -> list[str]:
    flags = coin_flags(out)
    place = flags.index("--horizon.turns")
    return [*flags[:place], *flags[place + 2 :], *KINDS[kind]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunFolder]:
    """Runs that nothing interrupted, by kind."""

    @cache
    def run(kind: str) -> RunFolder:
        folder = RunFolder(tmp_path_factory.mktemp(kind) / "run")
        assert train_cli(_flags(folder.path, kind)) == 0
        return folder

    return run


def _metrics(folder: RunFolder) -> list[dict[str, Any]]:
    return _without_timings(folder.read_metrics())


def _without_timings(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    timings = ("seconds", "tokens_per_s")
    return [{name: value for name, value in line.items() if name not in timings} for line in lines]


def _episodes(folder: RunFolder) -> dict[str, list[dict[str, Any]]]:
    """Every evaluation's episodes, without their timings."""
    return {
        path.name: [json.loads(e.to_json()) | {"seconds": None} for e in read_episodes(path)]
        for path in sorted(folder.evaluations.iterdir())
    }


def _content(path: Path) -> Any:
    """What a file says, so that two can be compared to the bit."""
    if path.suffix == ".bin":
        return torch.load(path)
    if path.suffix == ".safetensors":
        return load_file(path)
    if path.name == "metrics.jsonl":
        return _without_timings(map(json.loads, path.read_text().splitlines()))
    # Generators are compared by what they draw; manifests and adapters name what differs from run to run.
    return (
        None
        if path.suffix in (".pkl", ".md") or path.name in ("manifest.json", "adapter_config.json")
        else path.read_bytes()
    )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def _assert_same(run: RunFolder, whole: RunFolder, *, beside: bool = True) -> None:
    """The same to the bit, but for the times; of the checkpoints `beside` the last one only where none was added."""
    assert _metrics(run) == _metrics(whole)
    assert _episodes(run) == _episodes(whole)
    files = [path.relative_to(whole.path) for path in whole.path.rglob("*") if path.is_file()]
    below = [file for file in files if file.parts[0] in ("checkpoints", "model", "start")]
    assert {file.parts[1] for file in below if file.parts[0] == "checkpoints"} >= {"step-000004", "step-000006"}
    for file in (file for file in below if beside or file.parts[1] != "step-000004"):
        assert _same(_content(run.path / file), _content(whole.path / file)), file
    if beside:
        assert sorted(path.name for path in run.checkpoints.iterdir()) == sorted(
            path.name for path in whole.checkpoints.iterdir()
        )
    assert run.checkpoints.joinpath("best").readlink() == whole.checkpoints.joinpath("best").readlink()


def _train_until(
    moments: Sequence[Moment], folder: Path, kind: str, *, resume: bool = False
) -> tuple[RunFolder, int | None, str]:
    """A run in a process of its own: its folder, the exit code, and what it said."""
    run, log = RunFolder(folder / "run"), folder / "log"
    arguments = ["--resume", str(run.path)] if resume else _flags(run.path, kind)
    code = train_until(moments[0], arguments, log, *moments[1:])
    return run, code, log.read_text()


def _latest(run: RunFolder) -> str | None:
    """The name of the last whole checkpoint."""
    found = Checkpoints(run.checkpoints, keep=2, say=print).latest()
    return found.name if found else None


# Kills.

MOMENTS = {
    "imitating": (Moment("agentgym_trainer.learner.learner:Learner", "update", 20), None),
    "evaluating": (Moment("agentgym_trainer.run.folder:RunFolder", "save_evaluation", 1), None),
    "before the first checkpoint": (Moment(*LOG, 1), None),
    # 36 of imitation, 4 in each step.
    "in a step": (Moment("agentgym_trainer.learner.learner:Learner", "_step", 36 + 3 * 4 + 2), "step-000002"),
    # Optimizer, schedule and generators are three files; what was begun of this checkpoint lies beside the one before.
    "between a checkpoint's files": (Moment("torch", "save", 4), "step-000002"),
    "between seal and name": (Moment("agentgym_trainer.run.checkpoint", "seal", 2), "step-000004"),
}  # fmt: skip
KILLS = [("ppo", name) for name in MOMENTS]
KILLS += [("lora", "in a step")]


@pytest.mark.parametrize(("kind", "name"), KILLS)
def test_killed_and_resumed_is_as_if_nothing_had_happened(
    kind: str, name: str, tmp_path: Path, whole: Callable[[str], RunFolder]
) -> None:
    moment, latest = MOMENTS[name]
    run, code, said = _train_until([moment], tmp_path, kind)
    assert code == -signal.SIGKILL, said
    assert run.start.exists() == (name != "imitating")
    assert _latest(run) == latest
    # What a killed process may leave half-written besides.
    with run.metrics.open("a") as lines:
        lines.write('{"step": 99, "succ')
    (run.path / ".start").mkdir(exist_ok=True)
    assert train_cli(["--resume", str(run.path)]) == 0
    _assert_same(run, whole(kind))


def test_there_was_something_to_remember(whole: Callable[[str], RunFolder]) -> None:
    run = whole("ppo")
    stages = [line["stage"]["number"] for line in run.read_metrics()]
    assert stages[0] == 0
    assert stages[-1] > 0
    progress = json.loads((run.checkpoints / "step-000006" / "progress.json").read_text())
    assert len(set(progress["sampler"].values())) > 1
    assert progress["best"]["step"] in (2, 4, 6)


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path, whole: Callable[[str], RunFolder]) -> None:
    run, code, said = _train_until([Moment(*LOG, 3, signal.SIGINT)], tmp_path, "ppo")
    assert code == 130, said
    assert "Stopping after this step; Ctrl-C again stops immediately." in said
    assert f"Saved after step 3; resume with: uv run train --resume {run.path}\n" in said
    assert "Traceback" not in said
    assert _latest(run) == "step-000003"
    assert train_cli([f"--resume={run.path}"]) == 0
    _assert_same(run, whole("ppo"))


def test_ctrl_c_while_imitating_says_how_to_go_on(tmp_path: Path) -> None:
    moment = Moment("agentgym_trainer.learner.learner:Learner", "update", 20, signal.SIGINT)
    run, code, said = _train_until([moment], tmp_path, "ppo")
    assert code == 130, said
    assert f"Interrupted; resume with: uv run train --resume {run.path}\n" in said
    assert "Traceback" not in said
    assert not run.start.exists()


# Preemption.

REPLY = ("agentgym_trainer.rollout.runner:EnginePolicy", "reply")
STEP = ("agentgym_trainer.learner.learner:Learner", "_step")


def _preempted(folder: Path, kind: str, *moments: Moment, resume: bool = False) -> RunFolder:
    """A run that the first of these signals has ended: saved, and with a sentence on how to go on."""
    run, code, said = _train_until(moments, folder, kind, resume=resume)
    assert code == 128 + moments[0].signal, said
    assert f"resume with: uv run train --resume {run.path}\n" in said
    assert "Traceback" not in said
    assert not (run.path / ".lock").exists()
    return run


@pytest.mark.parametrize(("kind", "seed"), [("ppo", 0), ("grpo", 1)])
def test_signals_at_random_moments_do_not_show(
    kind: str, seed: int, tmp_path: Path, whole: Callable[[str], RunFolder]
) -> None:
    rng = np.random.default_rng(seed)
    # Before training and after the second step two evaluations each; the second signal comes while the run is saved.
    evaluating = Moment("agentgym_trainer.trainers.evaluation:Evaluator", "_deals", 3, signal.SIGUSR1)
    run = _preempted(tmp_path, kind, evaluating, Moment("agentgym_trainer.run.checkpoint", "seal", 1, signal.SIGTERM))
    assert _progress(run)["step"] == 2
    assert _progress(run)["learned"] is not None
    # From here on nobody gets a reply: what is under way can't come to its end.
    playing = Moment(*REPLY, int(rng.integers(1, 60)), signal.SIGTERM, forever=True)
    _preempted(tmp_path, kind, playing, resume=True)
    before = _progress(run)["step"]
    _preempted(tmp_path, kind, Moment(*STEP, int(rng.integers(1, 8)), signal.SIGUSR1), resume=True)
    assert _progress(run)["step"] > before, "an update is finished first"
    assert train_cli(["--resume", str(run.path)]) == 0
    _assert_same(run, whole(kind), beside=False)


def test_a_signal_before_training_ends_the_run_at_once(tmp_path: Path) -> None:
    run = _preempted(tmp_path, "ppo", Moment("agentgym_trainer.cli", "_open", 1, signal.SIGUSR1))
    assert [path.name for path in run.path.iterdir()] == ["run.json"]
    watching = Moment("agentgym_trainer.rollout.environments:OpenEnvironment", "play", 1, signal.SIGUSR1)
    _preempted(tmp_path, "ppo", watching, resume=True)
    imitating = Moment("agentgym_trainer.learner.learner:Learner", "update", 20, signal.SIGTERM)
    _preempted(tmp_path, "ppo", imitating, resume=True)
    assert not run.start.exists()
    assert not run.checkpoints.exists()


def _progress(run: RunFolder) -> dict[str, Any]:
    return json.loads((run.checkpoints / str(_latest(run)) / "progress.json").read_text())


# Damage.


@pytest.fixture
def copied(tmp_path: Path, whole: Callable[[str], RunFolder]) -> RunFolder:
    """A finished run that may be harmed."""
    shutil.copytree(whole("ppo").path, tmp_path / "run", symlinks=True)
    shutil.rmtree(tmp_path / "run" / "model")
    return RunFolder(tmp_path / "run")


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_named_and_the_run_goes_on_from_the_one_before(
    copied: RunFolder, whole: Callable[[str], RunFolder], capfd: pytest.CaptureFixture[str]
) -> None:
    _flip(copied.checkpoints / "step-000006" / "optimizer.bin")
    assert train_cli(["--resume", str(copied.path)]) == 0
    said = " ".join(capfd.readouterr().err.split())
    assert "Skipping checkpoint step-000006 (optimizer.bin has other content than was written): it is damaged." in said
    _assert_same(copied, whole("ppo"))


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_and_left_as_it_is(
    copied: RunFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    for path in copied.checkpoints.glob("step-*"):
        (path / "manifest.json").unlink()
    before = {path: path.read_bytes() for path in copied.path.rglob("*") if path.is_file()}
    assert train_cli(["--resume", str(copied.path)]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert f"All checkpoints in {copied.checkpoints} are damaged: step-000006 (manifest.json is missing); " in said
    assert "Traceback" not in said
    assert {path: path.read_bytes() for path in copied.path.rglob("*") if path.is_file()} == before


def test_a_full_disk_ends_the_run_with_a_sentence_and_room_lets_it_go_on(
    copied: RunFolder, whole: Callable[[str], RunFolder], capfd: pytest.CaptureFixture[str]
) -> None:
    last, before = (copied.checkpoints / f"step-00000{step}" for step in (6, 4))
    size = (last / "optimizer.bin").stat().st_size
    shutil.rmtree(last)
    with files_up_to(size - 1):
        assert train_cli(["--resume", str(copied.path)]) == 1
    said = " ".join(capfd.readouterr().err.split())
    assert f"error: {last} can't be written: " in said
    assert "Traceback" not in said
    assert find_damage(before) is None
    assert train_cli(["--resume", str(copied.path)]) == 0
    _assert_same(copied, whole("ppo"))
