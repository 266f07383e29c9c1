"""Tests of the files and output of complete RL runs in the coin environment."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from agentgym_envs import read_episodes
from agentgym_eval.cli.main import evaluate
from agentgym_eval.metrics.failure_causes import KINDS, failure_causes
from agentgym_eval.policies.policies import find_policy
from agentgym_eval.storage.distances import read_distances
from agentgym_eval.storage.provenance import git_state
from agentgym_eval.storage.vocabulary_file import vocabulary_file
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.vocabulary import find_vocabulary
from agentgym_trainer.run.folder import SCHEMA, RunFolder
from agentgym_trainer.trainers import rl
from coin_world import ENV, Coin
from gymnasium.error import DependencyNotInstalled
from toy_learner import coin_flags, train_cli
from transformers import AutoModelForCausalLM, AutoTokenizer

STEPS = 6


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run."""
    folder = RunFolder(tmp_path_factory.mktemp("finished") / "run")
    assert train_cli(coin_flags(folder.path)) == 0
    return folder


def test_resuming_a_finished_run_changes_nothing(finished: RunFolder) -> None:
    before = (finished.metrics.read_text(), (finished.model / "model.safetensors").read_bytes())
    assert train_cli(["--resume", str(finished.path)]) == 0
    (session,) = json.loads(finished.settings.read_text())["resumed"]
    assert session["command"][1:] == ["--resume", str(finished.path)]
    assert (finished.metrics.read_text(), (finished.model / "model.safetensors").read_bytes()) == before


# The run folder.


def test_every_step_has_a_metrics_line(finished: RunFolder) -> None:
    lines = list(finished.read_metrics())
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    for line in lines:
        assert sum(line["stops"].values()) == 16
        assert line["failed"] == 0
        assert line["horizon"] == 3
        assert line["trained"] > 0
        assert line["grad_norm"] > 0
    played = np.diff([0, *(line["env_steps"] for line in lines)])
    assert played.tolist() == pytest.approx([line["turns"] * 16 for line in lines])


def test_evaluated_samples_have_the_version_of_their_weights(finished: RunFolder) -> None:
    for step in (0, 3, 6):
        episodes = finished.read_evaluation(step, "sampled") or []
        versions = {turn.reply.sample.version for e in episodes for turn in e.turns if turn.reply.sample}
        assert versions == {step}


def test_training_changes_the_weights_but_not_the_start(finished: RunFolder) -> None:
    assert (finished.start / "model.safetensors").read_bytes() != (finished.model / "model.safetensors").read_bytes()


def test_the_last_checkpoints_are_kept_and_load_with_transformers(finished: RunFolder) -> None:
    kept = sorted(path.name for path in finished.checkpoints.iterdir())
    best = (finished.checkpoints / "best").resolve().name
    assert kept == sorted({"best", best, "step-000004", "step-000006"})
    final = AutoModelForCausalLM.from_pretrained(finished.model)
    last = AutoModelForCausalLM.from_pretrained(finished.checkpoints / kept[-1])
    for parameter, expected in zip(final.parameters(), last.parameters(), strict=True):
        assert torch.equal(parameter, expected)
    tokenizers = [AutoTokenizer.from_pretrained(path) for path in (finished.start, finished.checkpoints / kept[-1])]
    conversation = [{"role": "user", "content": "Flip 1. 23 heads"}, {"role": "assistant", "content": "tails"}]
    texts = [t.apply_chat_template(conversation, tokenize=False) for t in tokenizers]
    assert texts[0] == texts[1]
    assert tokenizers[0].encode(texts[0]) == tokenizers[1].encode(texts[0])


def test_the_summary_has_evaluations_before_and_after(finished: RunFolder) -> None:
    summary = json.loads(finished.summary.read_text())
    assert summary["steps"] == STEPS
    assert summary["evaluations"].keys() == summary["worlds"]["coin/Coin-v0"].keys() == {"dev", "test"}
    for split, steps in (("dev", {"0", "3", "6"}), ("test", {"0", "6"})):
        assert summary["evaluations"][split].keys() == {"sampled", "greedy"}
        for decoding, by_step in summary["evaluations"][split].items():
            assert by_step.keys() == steps
            for figures in by_step.values():
                assert figures["tasks"] == 4
                assert figures["failed"] == 0
                assert figures["pass_at"].keys() == ({"1", "2"} if decoding == "sampled" else {"1"})


def test_the_learning_curve_is_not_blank(finished: RunFolder) -> None:
    picture = matplotlib.image.imread(finished.curve)
    assert picture.shape[0] > 300
    assert picture.shape[1] > 600
    colours = np.unique(picture.reshape(-1, picture.shape[2]).round(2), axis=0)
    assert len(colours) > 20


def test_the_folder_has_configuration_versions_and_command(finished: RunFolder) -> None:
    folder, config, recipe = RunFolder.open(finished.path)
    assert folder.path == finished.path
    assert recipe == "textcraft-grpo"
    assert (config.world.env, config.steps, config.evaluation.ks) == (ENV, STEPS, (1, 2))
    record = json.loads(finished.settings.read_text())
    assert record["schema"] == SCHEMA
    assert record["versions"]["python"]
    assert record["command"][1] == "textcraft-grpo"
    # The commit may have changed during the tests.
    state = git_state(Path(__file__).parent)
    assert (record["git"] or {}).keys() == (state or {}).keys()


def test_every_step_has_its_rollouts(finished: RunFolder) -> None:
    for line in finished.read_metrics():
        episodes = list(read_episodes(finished.rollouts / f"step-{line['step']:06d}.jsonl"))
        assert Counter(episode.stop for episode in episodes) == line["stops"]
        assert sum(episode.acts for episode in episodes) == round(line["turns"] * 16)


@pytest.mark.long
def test_the_result_table_shows_before_after_and_failed_episodes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = coin_flags(
        tmp_path / "run", "--world.options", "fault_on_reset=(1,4)", "--steps", "2", "--evaluation.every", "0"
    )
    assert train_cli([*broken, "--max-failed", "1"]) == 0
    out = capfd.readouterr().out
    assert "before" in out
    assert "after" in out
    for row in ("pass@1, sampled at 1", "pass@2, sampled at 1", "pass@1, greedy", "score, sampled", "turns, sampled"):
        assert row in out
    tables = [line for line in out.splitlines() if "failed episodes" in line]
    # One task per split fails: two sampled episodes and a greedy one.
    assert [[int(cell) for cell in failed.split("│")[2:4]] for failed in tables] == [[3, 3], [3, 3]]
    assert f"--policy hf:{tmp_path / 'run' / 'model'} --split test" in out
    assert f"uv run view {tmp_path / 'run'}\n" in out
    assert f"Learning curve: {tmp_path / 'run' / 'curve.png'}\n" in out


@pytest.mark.parametrize("train_on_truncated", [True, pytest.param(False, marks=pytest.mark.long)])
def test_failed_episodes_never_train_and_truncated_ones_optionally(tmp_path: Path, train_on_truncated: bool) -> None:
    run = RunFolder(tmp_path / "run")
    flags = coin_flags(
        run.path, "--world.options", "fault_on_step=(0,1,2,3)", "--steps", "3", "--evaluation.every", "0"
    )
    flags += ["--warm-start.epochs", "12"]  # of the few demonstrations that don't fail
    keep_all = ("--max-failed", "1", "--algorithm.groups.single", "keep", "--algorithm.groups.zero-variance", "keep")
    assert (
        train_cli([*flags, *keep_all, "--train-on-truncated" if train_on_truncated else "--no-train-on-truncated"]) == 0
    )
    seen_stops: set[str] = set()
    for line in run.read_metrics():
        stops = line["stops"]
        seen_stops |= stops.keys()
        assert line["failed"] == stops.get("failed", 0)
        kept = sum(
            count for stop, count in stops.items() if stop != "failed" and (train_on_truncated or stop != "length")
        )
        assert line["trained"] == kept
    assert {"failed", "length", "terminated"} <= seen_stops


def test_a_missing_program_of_an_environment_is_named_before_anything_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def missing(_: Coin) -> None:
        raise DependencyNotInstalled("There is no mint. Install it: uv sync --extra mint")

    monkeypatch.setattr(Coin, "check_dependencies", missing)
    assert train_cli(coin_flags(tmp_path / "run")) == 2
    err = capfd.readouterr().err
    assert "There is no mint. Install it: uv sync --extra mint" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("flag", ["--optimizer.offload", "--compile"])
def test_what_cant_be_sharded_is_refused_before_anything_is_loaded(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rl, "is_sharded", lambda _: True)
    monkeypatch.setattr(rl, "open_environments", lambda _: pytest.fail("environments were opened"))
    assert train_cli(coin_flags(tmp_path / "run", flag)) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "Start the processes without FSDP2" in said and f"or leave {flag[2:]} off" in said


def test_a_completely_broken_environment_trains_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = RunFolder(tmp_path / "run")
    flags = coin_flags(run.path, "--world.options", "fault_on_reset=(0,1,2,3,4,5,6,7)", "--steps", "2")
    flags += ["--warm-start.episodes", "0"]
    assert train_cli([*flags, "--evaluation.every", "0", "--max-failed", "1"]) == 0
    assert [(line["failed"], line["trained"], line["success"]) for line in run.read_metrics()] == [(16, 0, None)] * 2
    assert (run.start / "model.safetensors").read_bytes() == (run.model / "model.safetensors").read_bytes()
    tables = [line for line in capfd.readouterr().out.splitlines() if "failed episodes" in line]
    assert [[int(cell) for cell in failed.split("│")[2:4]] for failed in tables] == [[12, 12], [12, 12]]
    assert run.curve.exists()


@pytest.mark.long
def test_forensics_measures_the_causes_of_evaluations(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    flags = coin_flags(run.path, "--evaluation.forensics", "--evaluation.every", "2", "--steps", "3")
    assert train_cli(flags) == 0
    shares = {line["step"]: line["dev_failures"] for line in run.read_metrics() if "dev_failures" in line}
    assert [*shares] == [2, 3]
    for step, found in shares.items():
        file = run.evaluations / f"step-{step:06d}-sampled.jsonl"
        causes = failure_causes(episodes := list(read_episodes(file)), read_distances(file))
        counts = Counter(cause.kind for cause in causes if cause)
        assert found == {kind: counts[kind] / len(episodes) for kind in KINDS}
        assert any(read_distances(file).values())
    measured = {path.name.partition("-sampled.")[0] for path in run.evaluations.glob("*.distances.jsonl")}
    assert measured == {*(f"step-00000{step}" for step in (0, 2, 3)), "test-000000", "test-000003"}


def test_forensics_needs_an_expert_that_replans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Coin, "oracle_replans", False)
    assert train_cli(coin_flags(tmp_path / "run", "--evaluation.forensics")) == 2
    assert f"which {ENV} does not have" in " ".join(capfd.readouterr().err.split())


# The trained model as a policy.


def test_the_trained_model_can_be_evaluated(finished: RunFolder, tmp_path: Path) -> None:
    flags = ["--env", ENV, "--policy", f"hf:{finished.model}", "--samples", "2", "--agent", "bare", "--no-instructions"]
    assert evaluate([*flags, "--max-tokens", "6", "--horizon", "3", "--out", str(tmp_path)]) == 0
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    assert len(episodes) == 8
    for episode in episodes:
        assert episode.policy == f"hf:{finished.model}"
        assert all(turn.reply.sample is not None for turn in episode.turns)
    assert json.loads((tmp_path / "report.json").read_text())["overall"]["failed"] == 0


@pytest.mark.parametrize("argument", ["", "/no/such/folder", "here"])
def test_policies_without_a_model_give_one_line_errors(
    argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with pytest.raises(UsageError) as error:
        find_policy(f"hf:{argument}")(temperature=1.0, seed=0, max_tokens=8)
    expected = f"The model {argument} can't be loaded." if argument else "hf needs a model: write --policy hf:PATH"
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
    assert evaluate(["--env", ENV, "--policy", f"hf:{argument}", "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert expected in err


def test_sampled_ids_of_all_episodes_decode_with_the_vocabulary_of_the_run(finished: RunFolder, tmp_path: Path) -> None:
    shutil.copy(vocabulary_file(finished.path), tmp_path)
    vocabulary, tokenizer = find_vocabulary(tmp_path), AutoTokenizer.from_pretrained(finished.model)
    assert vocabulary is not None
    files = [*finished.evaluations.glob("*.jsonl"), *finished.rollouts.glob("step-000???.jsonl")]
    samples = [t.reply.sample for file in files for e in read_episodes(file) for t in e.turns if t.reply.sample]
    assert len(samples) > 100
    for ids in {(*sample.prompt, *sample.ids) for sample in samples}:
        text = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert "".join(vocabulary.texts(ids)) == text
