"""Whole runs of supervised fine-tuning in a world of coins: what they leave, and that interruptions don't show."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agentgym_envs import Episode
from agentgym_trainer.config import SFTConfig
from agentgym_trainer.run.checkpoint import find_damage
from agentgym_trainer.run.folder import RunFolder
from forked_processes import is_loaded, train_until
from safetensors.torch import load_file
from toy_learner import SignalPoint, StopAfterCalls, sft_flags, train_cli

pytestmark = pytest.mark.long

STEPS = 24


def weights(folder: RunFolder) -> bytes:
    return (folder.model / "model.safetensors").read_bytes()


def lines(folder: RunFolder) -> list[dict[str, Any]]:
    """What was logged, without timings."""
    return [{name: value for name, value in line.items() if name != "seconds"} for line in folder.read_metrics()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that nothing interrupted."""
    folder = RunFolder(tmp_path_factory.mktemp("whole") / "run")
    assert train_cli(sft_flags(folder.path)) == 0
    return folder


def test_a_run_leaves_what_every_run_leaves(whole: RunFolder) -> None:
    _, config, recipe = RunFolder.open(whole.path)
    assert isinstance(config, SFTConfig)
    assert recipe == "sft-textcraft"
    assert json.loads(whole.settings.read_text())["kind"] == "sft"
    logged = lines(whole)
    assert [line["step"] for line in logged] == list(range(1, STEPS + 1))
    assert logged[-1]["loss"] < 0.7 * logged[0]["loss"]
    assert [line["step"] for line in logged if "dev" in line] == [9, 18, 24]
    assert whole.evaluated_steps("sampled") == whole.evaluated_steps("greedy") == [0, 9, 18, 24]
    summary = json.loads(whole.summary.read_text())
    assert summary["steps"] == STEPS
    assert summary["evaluations"]["dev"]["greedy"].keys() == {"0", "9", "18", "24"}
    assert summary["evaluations"]["test"]["greedy"].keys() == {"0", "24"}
    assert whole.curve.stat().st_size > 10_000
    assert len(whole.read_data()) == 64
    for kept in ("step-000018", "step-000024"):
        assert find_damage(whole.checkpoints / kept) is None
    last = load_file(whole.checkpoints / "step-000024" / "model.safetensors")
    for name, weight in load_file(whole.model / "model.safetensors").items():
        assert torch.equal(weight, last[name])


def test_what_is_imitated_is_played(whole: RunFolder) -> None:
    """Coins can't be known beforehand; what can be learnt is to say heads or tails and nothing else."""
    before, after = (whole.read_evaluation(step, "greedy") or [] for step in (0, STEPS))

    def valid(episodes: Sequence[Episode]) -> float:
        turns = [turn for episode in episodes for turn in episode.turns]
        return sum(turn.valid for turn in turns) / len(turns)

    assert valid(before) < 0.2
    assert valid(after) > 0.9


def test_resuming_what_is_finished_changes_nothing(whole: RunFolder) -> None:
    before = weights(whole), lines(whole)
    assert train_cli(["--resume", str(whole.path)]) == 0
    assert (weights(whole), lines(whole)) == before


def test_asked_to_stop_it_saves_and_goes_on_as_if_it_had_not(
    whole: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr("agentgym_trainer.trainers.sft.train", _asked_after(13))
        assert train_cli(sft_flags(folder.path)) == 130
    assert f"Saved after step 13; resume with: uv run train --resume {folder.path}" in " ".join(
        capfd.readouterr().err.split()
    )
    assert train_cli(["--resume", str(folder.path)]) == 0
    assert weights(folder) == weights(whole)
    assert lines(folder) == lines(whole)


def _asked_after(steps: int) -> Any:
    """`train`, asked to stop once so many steps are taken."""
    from agentgym_trainer.trainers.sft import train

    return lambda config, folder, tracker, _: train(config, folder, tracker, StopAfterCalls(steps))


@pytest.mark.parametrize(
    ("moment", "more"),
    [
        (
            SignalPoint("agentgym_trainer.trainers.trl_run:TRLRunCallback", "on_step_end", 16),
            ("--lora.rank", "2", "--lora.dropout", "0.1"),
        ),
        (SignalPoint("agentgym_trainer.trainers.sft:Imitator", "save_model", 3), ()),
        (SignalPoint("agentgym_trainer.run.folder:RunFolder", "save_evaluation", 5), ()),
    ],
)
def test_a_killed_run_comes_to_the_very_same_weights(
    moment: SignalPoint, more: tuple[str, ...], whole: RunFolder, tmp_path: Path
) -> None:
    unbroken, killed = RunFolder(tmp_path / "whole") if more else whole, RunFolder(tmp_path / "killed")
    if more:
        assert train_cli(sft_flags(unbroken.path, *more)) == 0
    log = tmp_path / "log"
    assert train_until(moment, sft_flags(killed.path, *more), log) == -signal.SIGKILL, log.read_text()
    assert train_cli(["--resume", str(killed.path)]) == 0
    assert weights(killed) == weights(unbroken)
    assert lines(killed) == lines(unbroken)
    assert not list(killed.checkpoints.glob("checkpoint-*"))


def test_signals_end_the_run_at_once_and_do_not_show(whole: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    evaluating, stepping = (
        ("agentgym_trainer.trainers.evaluation:Evaluator", "_deals"),
        ("agentgym_trainer.trainers.trl_run:TRLRunCallback", "on_log"),
    )
    seed = int(np.random.default_rng(0).integers(1, 8))
    arguments = sft_flags(folder.path)
    for moment, step in (
        # Two evaluations before training and two after step 9, the second of which isn't played.
        (SignalPoint(*evaluating, 4, signal.SIGTERM), 9),
        (SignalPoint(*evaluating, 1, signal.SIGUSR1), 9),
        (SignalPoint(*stepping, seed, signal.SIGTERM), 9 + seed + 1),
        # Two after step 18, then the last ones.
        (SignalPoint(*evaluating, 3, signal.SIGUSR1), STEPS),
    ):
        code = train_until(moment, arguments, tmp_path / "log")
        said = (tmp_path / "log").read_text()
        assert code == 128 + moment.signal, said
        assert f"resume with: uv run train --resume {folder.path}\n" in said
        assert "Traceback" not in said
        assert find_damage(folder.checkpoints / f"step-{step:06d}") is None
        assert lines(folder)[-1]["step"] == step
        assert not folder.model.exists()
        arguments = ["--resume", str(folder.path)]
    assert train_cli(arguments) == 0
    assert weights(folder) == weights(whole)
    assert lines(folder) == lines(whole)
    assert folder.evaluated_steps("greedy") == [0, 9, 18, 24]
    assert folder.checkpoints.joinpath("best").readlink() == whole.checkpoints.joinpath("best").readlink()


def test_the_best_step_may_be_one_whose_evaluation_a_signal_has_ended(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    last = SignalPoint("agentgym_trainer.trainers.evaluation:Evaluator", "_deals", 3, signal.SIGTERM)
    flags = sft_flags(folder.path, "--epochs", "1", "--evaluation.every", "0")
    assert train_until(last, flags, tmp_path / "log") == 143, (tmp_path / "log").read_text()
    assert not folder.checkpoints.joinpath("best").exists()
    # Evaluated for good, and killed before that is in the line of the step.
    told = SignalPoint("agentgym_trainer.run.folder:RunFolder", "save_evaluation", 2)
    assert train_until(told, ["--resume", str(folder.path)], tmp_path / "log") == -signal.SIGKILL
    assert train_cli(["--resume", str(folder.path)]) == 0
    assert folder.checkpoints.joinpath("best").readlink() == Path("step-000008")
    assert lines(folder)[-1]["dev"].keys() == {"sampled", "greedy"}


def test_a_checkpoint_is_written_when_one_is_overdue(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    flags = ("--epochs", "1", "--save-every", "100", "--save-minutes", "1e-9", "--keep-checkpoints", "9")
    assert train_cli(sft_flags(folder.path, *flags)) == 0
    assert sorted(path.name for path in folder.checkpoints.glob("step-*")) == [f"step-00000{n}" for n in range(1, 9)]


def test_vllm_is_loaded_by_runs_alone_that_ask_for_it() -> None:
    assert is_loaded("trl")
    assert not is_loaded("vllm")
