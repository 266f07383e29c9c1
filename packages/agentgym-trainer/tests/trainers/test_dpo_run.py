"""Tests of complete DPO runs in an environment where heads is always right."""

from __future__ import annotations

import math
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_envs import Episode, read_episodes
from agentgym_eval.data.pairs import make_pairs
from agentgym_trainer.config import DataConfig, DPOConfig, WorldConfig
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.trainers.dpo import _by_experts, _tasks
from coin_world import OTHER
from forked_processes import run_two_processes, train_with_signals
from metric_lines import without_measured
from safetensors.torch import load_file, save_file
from toy_learner import SignalPoint, coin_flags, train_cli
from train_processes import train

pytestmark = pytest.mark.long

STEPS = 10
COMMON = {
    "world.env": OTHER, "horizon.turns": "3", "generation.max-tokens": "6", "generation.max-context": "200",
    "optimizer.warmup": "0", "evaluation.tasks": "3", "evaluation.samples": "12", "epochs": "2", "batch": "8",
}  # fmt: skip


def flags(recipe: str, out: Path, *more: str, **settings: str) -> list[str]:
    options = {name.replace("__", "."): value for name, value in settings.items()}
    arguments = [
        word for name, value in (COMMON | options | {"out": str(out)}).items() for word in (f"--{name}", value)
    ]
    return [recipe, *arguments, "--world.options", "--evaluation.ks", "1", "2", *more]


def dpo_flags(model: Path, out: Path, *more: str, **settings: str) -> list[str]:
    """Return the arguments of a DPO run on twelve episodes of each of ten tasks, played by the model."""
    defaults = {
        "model": str(model), "data__episodes": "120", "samples": "12", "optimizer__lr": "2e-3", "imitation": "0",
        "save-every": "3",
    }  # fmt: skip
    return flags("dpo-textcraft", out, "--pairs.most", "4", *more, **(defaults | settings))


@pytest.fixture(scope="module")
def sft_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """An SFT run whose model says heads or tails at random, like its demonstrations."""
    folder = RunFolder(tmp_path_factory.mktemp("sft") / "run")
    settings = {
        "scratch.vocab": "280", "scratch.hidden": "32", "scratch.layers": "1", "scratch.heads": "2",
        "data.episodes": "10", "data.noise": "1", "data.keep": "all", "epochs": "40", "optimizer.lr": "1e-2",
        "data.min-score": "0", "scratch.merges": "phrases", "optimizer.micro-tokens": "8192",
    }  # fmt: skip
    assert train_cli(flags("sft-textcraft", folder.path, **settings)) == 0
    return folder


@pytest.fixture(scope="module")
def dpo_run(sft_run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """An uninterrupted DPO run."""
    folder = RunFolder(tmp_path_factory.mktemp("dpo") / "run")
    assert train_cli(dpo_flags(sft_run.model, folder.path)) == 0
    return folder


def lines(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the metrics without timings."""
    return without_measured(folder.read_metrics())


def weights(folder: RunFolder) -> bytes:
    return (folder.model / "model.safetensors").read_bytes()


def replies(episode: Episode) -> tuple[str, list[str]]:
    return episode.task_id, [turn.reply.text for turn in episode.turns]


def greedy_replies(folder: RunFolder, step: int) -> list[tuple[str, list[str]]]:
    return [replies(episode) for episode in folder.read_evaluation(step, "greedy") or []]


def success(folder: RunFolder, step: int) -> float:
    episodes = folder.read_evaluation(step, "sampled") or []
    return sum(bool(episode.success) for episode in episodes) / len(episodes)


def test_better_episodes_are_preferred_and_success_rises(dpo_run: RunFolder) -> None:
    _, config, recipe = RunFolder.open(dpo_run.path)
    assert isinstance(config, DPOConfig)
    assert recipe == "dpo-textcraft"
    played = dpo_run.read_data()
    assert len(played) == 120
    assert {episode.sample for episode in played} == set(range(12))
    metrics = lines(dpo_run)
    assert len(make_pairs(played, config.pairs)) == 40
    assert [line["step"] for line in metrics] == list(range(1, STEPS + 1))
    assert metrics[0]["loss"] == pytest.approx(0.6931, abs=1e-3)
    assert metrics[0]["rewards/margins"] == pytest.approx(0, abs=1e-4)
    assert metrics[-1]["rewards/margins"] > 0.1
    assert metrics[-1]["rewards/accuracies"] > 0.8
    assert success(dpo_run, 0) < 0.5
    assert success(dpo_run, STEPS) > success(dpo_run, 0) + 0.2


def test_the_experts_episodes_of_a_task_begin_alike() -> None:
    """Or none of them could be compared where the environment draws the start of an episode."""
    world = WorldConfig("agentgym/TextCraft-v0", ("depth=(1, 1)", "layout=episode"), agent="bare", instructions=False)
    config = DPOConfig(world=world, player="expert", samples=4, data=DataConfig(episodes=8, noise=0.5), device="cpu")
    with open_environments(config) as worlds:
        episodes = list(_by_experts(config, _tasks(config, worlds)))
    starts = {(episode.task_id, episode.turns[0].observation) for episode in episodes}
    assert (len(episodes), len(starts)) == (8, 2)


def test_experts_stop_at_a_signal(sft_run: RunFolder, tmp_path: Path) -> None:
    point = SignalPoint("agentgym_trainer.rollout.failures:FailureLimit", "count", 5, signal.SIGTERM)
    run, log = RunFolder(tmp_path / "run"), tmp_path / "log"
    code = train_with_signals(point, dpo_flags(sft_run.model, run.path, "--player", "expert"), log)
    assert code == 128 + signal.SIGTERM, log.read_text()
    assert not run.data.exists()


def test_a_killed_run_keeps_the_episodes_that_the_model_has_played(
    dpo_run: RunFolder, sft_run: RunFolder, tmp_path: Path
) -> None:
    point = SignalPoint("agentgym_eval.storage.store:Store", "append", 50)
    run, log = RunFolder(tmp_path / "run"), tmp_path / "log"
    assert train_with_signals(point, dpo_flags(sft_run.model, run.path), log) == -signal.SIGKILL, log.read_text()
    kept = list(read_episodes(run.path / "playing" / "0" / "episodes.jsonl"))
    assert len(kept) in (49, 50)
    assert train_cli(["--resume", str(run.path)]) == 0
    data = run.read_data()
    assert all(episode in data for episode in kept), "they weren't played again"
    assert list(map(replies, data)) == list(map(replies, dpo_run.read_data()))
    assert weights(run) == weights(dpo_run)
    assert not (run.path / "playing").exists()


SYNCED, ADAPTER = ("--reference.sync", "2"), ("--lora.rank", "2", "--lora.dropout", "0.1")


@pytest.fixture(scope="module")
def synced(sft_run: RunFolder, dpo_run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run on the same data with a reference that is synchronized."""
    folder = RunFolder(tmp_path_factory.mktemp("synced") / "run")
    assert train_cli(dpo_flags(sft_run.model, folder.path, *SYNCED, data__files=str(dpo_run.data))) == 0
    return folder


@pytest.fixture(scope="module")
def adapter(sft_run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that trains an adapter."""
    folder = RunFolder(tmp_path_factory.mktemp("adapter") / "run")
    assert train_cli(dpo_flags(sft_run.model, folder.path, *ADAPTER)) == 0
    return folder


@pytest.mark.parametrize(("name", "signum"), [("synced", signal.SIGKILL), ("adapter", signal.SIGTERM)])
def test_runs_ended_by_signals_resume_with_identical_weights(
    name: str,
    signum: signal.Signals,
    sft_run: RunFolder,
    dpo_run: RunFolder,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    expected: RunFolder = request.getfixturevalue(name)
    run = RunFolder(tmp_path / "run")
    arguments = dpo_flags(sft_run.model, run.path, *ADAPTER)
    if name == "synced":
        arguments = dpo_flags(sft_run.model, run.path, *SYNCED, data__files=str(dpo_run.data))
    point = SignalPoint("agentgym_trainer.trainers.trl_run:TRLRunCallback", "on_log", 5, signum)
    log = tmp_path / "log"
    expected_code = 143 if signum == signal.SIGTERM else -signum
    assert train_with_signals(point, arguments, log) == expected_code, log.read_text()
    assert train_cli(["--resume", str(run.path)]) == 0
    assert weights(run) == weights(expected)
    assert lines(run) == lines(expected)


def test_reference_sync_changes_the_loss_after_the_first_sync(dpo_run: RunFolder, synced: RunFolder) -> None:
    assert [line["loss"] for line in lines(synced)[:2]] == [line["loss"] for line in lines(dpo_run)[:2]]
    assert lines(synced)[2]["loss"] != lines(dpo_run)[2]["loss"]


def test_the_reference_can_be_another_model(dpo_run: RunFolder, sft_run: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    more = {"data__files": str(dpo_run.data), "reference__model": str(dpo_run.model), "epochs": "1"}
    assert train_cli(dpo_flags(sft_run.model, folder.path, **more)) == 0
    # The reference already prefers what the model has yet to learn.
    assert lines(folder)[0]["rewards/margins"] < -0.1


def test_rl_starts_from_models_trained_on_data(
    dpo_run: RunFolder, sft_run: RunFolder, adapter: RunFolder, tmp_path: Path
) -> None:
    runs = {
        "sft": (sft_run, sft_run.model),
        "dpo": (dpo_run, dpo_run.model),
        "adapter": (adapter, adapter.checkpoints / f"step-{STEPS:06d}"),
    }
    for name, (previous, model) in runs.items():
        run = RunFolder(tmp_path / name)
        settings = {
            "model": str(model), "world.env": OTHER, "warm-start.episodes": "0", "steps": "1", "evaluation.tasks": "3",
            "evaluation.samples": "2",
        }  # fmt: skip
        more = [word for setting, value in settings.items() for word in (f"--{setting}", value)]
        assert train_cli(coin_flags(run.path, *more, "--algorithm.groups.zero-variance", "keep")) == 0
        assert greedy_replies(run, 0) == greedy_replies(previous, previous.evaluated_steps("greedy")[-1])
        (line,) = run.read_metrics()
        assert line["grad_norm"] > 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--model", "scratch"), "A model from scratch solves no tasks yet"),
        (("--data.files", "{unsuccessful}"), "episodes make no pair"),
        (
            ("--data.files", "{data}", "--generation.max-context", "20"),
            "have a context of more than generation.max_context, 20 tokens",
        ),
        (("--data.files", "{data}", "--data.min-score", "1", "--data.keep", "success"), "make no pair"),
        (("--batch", "0"), "batch must be at least 1"),
        (("--reference.sync", "2", "--lora.rank", "2"), "set reference.sync 0"),
    ],
)
def test_settings_without_usable_pairs_are_rejected(
    more: tuple[str, ...], message: str, dpo_run: RunFolder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    unsuccessful, data = tmp_path / "unsuccessful.jsonl", dpo_run.data
    episodes = [episode for episode in dpo_run.read_data() if not episode.score]
    unsuccessful.write_text("".join(f"{episode.to_json()}\n" for episode in episodes[:9]))
    flags = [word.format(unsuccessful=unsuccessful, data=data) for word in more]
    assert train_cli([*dpo_flags(dpo_run.model, tmp_path / "run"), *flags]) == 2
    stderr = capfd.readouterr().err.replace("\u2502", " ")
    assert message in " ".join(stderr.split())


def test_a_model_with_non_finite_weights_plays_nothing(
    sft_run: RunFolder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = shutil.copytree(sft_run.model, tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] = math.nan
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    assert train_cli(dpo_flags(model, tmp_path / "run")) == 1
    error = " ".join(capfd.readouterr().err.split())
    assert f"1 of the {len(weights)} weight tensors hold values that aren't finite." in error
    assert error.endswith("to change settings, such as to a lower optimizer.lr, start a new run.")


def test_two_processes_train_like_one(dpo_run: RunFolder, sft_run: RunFolder, tmp_path: Path) -> None:
    folder, log = RunFolder(tmp_path / "run"), tmp_path / "log"
    assert run_two_processes(train, "ddp", "none", dpo_flags(sft_run.model, folder.path), log=log) == [0, 0], (
        log.read_text()
    )
    assert [replies(episode) for episode in folder.read_data()] == [replies(episode) for episode in dpo_run.read_data()]
    one = load_file(dpo_run.model / "model.safetensors")
    for name, weight in load_file(folder.model / "model.safetensors").items():
        torch.testing.assert_close(weight, one[name], atol=1e-5, rtol=0)
