"""Whole runs of preference optimization where heads is always right: what is learned, what is left, what follows."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_envs import Episode
from agentgym_eval.data.pairs import make_pairs
from agentgym_trainer.config import DPOConfig
from agentgym_trainer.run.folder import RunFolder
from coin_world import OTHER
from forked_processes import by_two, train_until
from safetensors.torch import load_file
from toy_learner import Moment, coin_flags, train_cli
from train_processes import train

pytestmark = pytest.mark.long

STEPS = 10
COMMON = {
    "world.env": OTHER, "horizon.turns": "3", "generation.max-tokens": "6", "generation.max-context": "200",
    "optimizer.warmup": "0", "evaluation.tasks": "3", "evaluation.samples": "12", "epochs": "2", "batch": "8",
}  # fmt: skip


def flags(recipe: str, out: Path, *more: str, **settings: str) -> list[str]:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    words = [word for name, value in (COMMON | named | {"out": str(out)}).items() for word in (f"--{name}", value)]
    return [recipe, *words, "--world.options", "--evaluation.ks", "1", "2", *more]


def dpo_flags(model: Path, out: Path, *more: str, **settings: str) -> list[str]:
    """A run in which the model plays ten tasks, twelve times each."""
    known = {
        "model": str(model), "data__episodes": "120", "samples": "12", "optimizer__lr": "2e-3", "imitation": "0",
        "save-every": "3",
    }  # fmt: skip
    return flags("dpo-textcraft", out, "--pairs.most", "4", *more, **(known | settings))


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A model that says heads or tails, and knows nothing of what is right: the expert did as it pleased."""
    folder = RunFolder(tmp_path_factory.mktemp("taught") / "run")
    settings = {
        "scratch.vocab": "280", "scratch.hidden": "32", "scratch.layers": "1", "scratch.heads": "2",
        "data.episodes": "10", "data.noise": "1", "data.keep": "all", "epochs": "40", "optimizer.lr": "1e-2",
        "data.min-score": "0", "scratch.merges": "phrases", "optimizer.micro-tokens": "8192",
    }  # fmt: skip
    assert train_cli(flags("sft-textcraft", folder.path, **settings)) == 0
    return folder


@pytest.fixture(scope="module")
def whole(taught: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that nothing interrupted."""
    folder = RunFolder(tmp_path_factory.mktemp("whole") / "run")
    assert train_cli(dpo_flags(taught.model, folder.path)) == 0
    return folder


def lines(folder: RunFolder) -> list[dict[str, Any]]:
    """What was logged, without timings."""
    return [{name: value for name, value in line.items() if name != "seconds"} for line in folder.read_metrics()]


def weights(folder: RunFolder) -> bytes:
    return (folder.model / "model.safetensors").read_bytes()


def words(episode: Episode) -> tuple[str, list[str]]:
    return episode.task_id, [turn.reply.text for turn in episode.turns]


def said(folder: RunFolder, step: int) -> list[tuple[str, list[str]]]:
    return [words(episode) for episode in folder.read_evaluation(step, "greedy") or []]


def success(folder: RunFolder, step: int) -> float:
    episodes = folder.read_evaluation(step, "sampled") or []
    return sum(bool(episode.success) for episode in episodes) / len(episodes)


def test_what_did_better_is_preferred_and_success_rises(whole: RunFolder) -> None:
    _, config, recipe = RunFolder.open(whole.path)
    assert isinstance(config, DPOConfig)
    assert recipe == "dpo-textcraft"
    played = whole.read_data()
    assert len(played) == 120
    assert {episode.sample for episode in played} == set(range(12))
    logged = lines(whole)
    assert len(make_pairs(played, config.pairs)) == 40
    assert [line["step"] for line in logged] == list(range(1, STEPS + 1))
    assert logged[0]["loss"] == pytest.approx(0.6931, abs=1e-3)
    assert logged[0]["rewards/margins"] == pytest.approx(0, abs=1e-4)
    assert logged[-1]["rewards/margins"] > 0.1
    assert logged[-1]["rewards/accuracies"] > 0.8
    assert success(whole, 0) < 0.5
    assert success(whole, STEPS) > success(whole, 0) + 0.2


SYNCED, ADAPTER = ("--reference.sync", "2"), ("--lora.rank", "2", "--lora.dropout", "0.1")


@pytest.fixture(scope="module")
def synced(taught: RunFolder, whole: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The same data, and a reference that moves."""
    folder = RunFolder(tmp_path_factory.mktemp("synced") / "run")
    assert train_cli(dpo_flags(taught.model, folder.path, *SYNCED, data__files=str(whole.data))) == 0
    return folder


@pytest.fixture(scope="module")
def adapter(taught: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """An adapter that trains."""
    folder = RunFolder(tmp_path_factory.mktemp("adapter") / "run")
    assert train_cli(dpo_flags(taught.model, folder.path, *ADAPTER)) == 0
    return folder


@pytest.mark.parametrize(("name", "how"), [("synced", signal.SIGKILL), ("adapter", signal.SIGTERM)])
def test_a_run_that_a_signal_ended_comes_to_the_very_same_weights(
    name: str, how: signal.Signals, taught: RunFolder, whole: RunFolder, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    expected: RunFolder = request.getfixturevalue(name)
    run = RunFolder(tmp_path / "run")
    arguments = dpo_flags(taught.model, run.path, *ADAPTER)
    if name == "synced":
        arguments = dpo_flags(taught.model, run.path, *SYNCED, data__files=str(whole.data))
    moment, log = Moment("agentgym_trainer.trainers.trl_run:TRLRunCallback", "on_log", 5, how), tmp_path / "log"
    expected_code = 143 if how == signal.SIGTERM else -how
    assert train_until(moment, arguments, log) == expected_code, log.read_text()
    assert train_cli(["--resume", str(run.path)]) == 0
    assert weights(run) == weights(expected)
    assert lines(run) == lines(expected)


def test_a_reference_that_moves_makes_for_other_weights(whole: RunFolder, synced: RunFolder) -> None:
    assert [line["loss"] for line in lines(synced)[:2]] == [line["loss"] for line in lines(whole)[:2]]
    assert lines(synced)[2]["loss"] != lines(whole)[2]["loss"]


def test_another_model_can_be_the_reference(whole: RunFolder, taught: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    more = {"data__files": str(whole.data), "reference__model": str(whole.model), "epochs": "1"}
    assert train_cli(dpo_flags(taught.model, folder.path, **more)) == 0
    # The reference prefers already what the model has still to learn.
    assert lines(folder)[0]["rewards/margins"] < -0.1


def test_reinforcement_learning_goes_on_where_data_left_off(
    whole: RunFolder, taught: RunFolder, adapter: RunFolder, tmp_path: Path
) -> None:
    starts = {
        "sft": (taught, taught.model),
        "dpo": (whole, whole.model),
        "adapter": (adapter, adapter.checkpoints / f"step-{STEPS:06d}"),
    }
    for name, (before, model) in starts.items():
        run = RunFolder(tmp_path / name)
        settings = {
            "model": str(model), "world.env": OTHER, "warm-start.episodes": "0", "steps": "1", "evaluation.tasks": "3",
            "evaluation.samples": "2",
        }  # fmt: skip
        more = [word for setting, value in settings.items() for word in (f"--{setting}", value)]
        assert train_cli(coin_flags(run.path, *more, "--algorithm.groups.zero-variance", "keep")) == 0
        assert said(run, 0) == said(before, before.evaluated_steps("greedy")[-1])
        (line,) = run.read_metrics()
        assert line["grad_norm"] > 0


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--model", "scratch"), "A model from scratch solves no tasks yet"),
        (("--data.files", "{lost}"), "episodes make no pair"),
        (
            ("--data.files", "{played}", "--generation.max-context", "20"),
            "have a context of more than generation.max_context, 20 tokens",
        ),
        (("--data.files", "{played}", "--data.min-score", "1", "--data.keep", "success"), "make no pair"),
        (("--batch", "0"), "batch must be at least 1"),
        (("--reference.sync", "2", "--lora.rank", "2"), "set reference.sync 0"),
    ],
)
def test_what_can_not_be_compared_is_refused(
    more: tuple[str, ...], sentence: str, whole: RunFolder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lost, played = tmp_path / "lost.jsonl", whole.data
    nothing = [episode for episode in whole.read_data() if not episode.score]
    lost.write_text("".join(f"{episode.to_json()}\n" for episode in nothing[:9]))
    words = [word.format(lost=lost, played=played) for word in more]
    assert train_cli([*dpo_flags(whole.model, tmp_path / "run"), *words]) == 2
    said = capfd.readouterr().err.replace("\u2502", " ")
    assert sentence in " ".join(said.split())


def test_two_processes_learn_as_one_does(whole: RunFolder, taught: RunFolder, tmp_path: Path) -> None:
    folder, log = RunFolder(tmp_path / "run"), tmp_path / "log"
    assert by_two(train, "ddp", "well", dpo_flags(taught.model, folder.path), log=log) == [0, 0], log.read_text()
    assert [words(episode) for episode in folder.read_data()] == [words(episode) for episode in whole.read_data()]
    one = load_file(whole.model / "model.safetensors")
    for name, weight in load_file(folder.model / "model.safetensors").items():
        torch.testing.assert_close(weight, one[name], atol=1e-5, rtol=0)
