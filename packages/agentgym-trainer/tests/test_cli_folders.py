"""Tests of `train` with run folders and models: what is refused, resumed, locked and left behind."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agentgym_eval.storage.lock import FolderLock
from agentgym_eval.util.errors import UsageError
from agentgym_trainer import api, cli
from agentgym_trainer.config import WorldConfig
from agentgym_trainer.models.resolve import resolve_model
from agentgym_trainer.recipes import RECIPES, tiny
from agentgym_trainer.run.folder import RunFolder
from cli_errors import error_of
from coin_world import Coin
from toy_learner import coin_flags, train_cli


def test_resuming_a_folder_without_a_run_is_rejected(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert error_of(["--resume", str(folder)], capfd).startswith(f"{folder} holds no training run")


def test_resuming_with_invalid_settings_is_rejected(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(tmp_path / "run", RECIPES["quickstart"].config, "quickstart")
    record = json.loads(folder.settings.read_text())
    record["config"]["optimizer"]["momentun"] = 0.9
    folder.settings.write_text(json.dumps(record))
    assert "There is no setting 'optimizer.momentun'" in error_of(["--resume", str(folder.path)], capfd)
    record["config"]["optimizer"] = {"lr": "fast"}
    folder.settings.write_text(json.dumps(record))
    assert "optimizer.lr must be of type float, not 'fast'" in error_of(["--resume", str(folder.path)], capfd)
    folder.settings.write_text("{")
    assert f"{folder.settings} can't be used" in error_of(["--resume", str(folder.path)], capfd)


@pytest.mark.parametrize(
    "arguments",
    [["textcraft-grpo", "--resume", "X"], ["--resume", "X", "--steps", "3"], ["--tiny", "--resume=X"]],
)  # fmt: skip
def test_resume_rejects_other_arguments(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert "takes no recipe or other flags" in error_of(arguments, capfd)


def test_nonempty_folder_is_rejected_with_its_full_path(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    full = tmp_path / "[bold]run"
    full.mkdir()
    (full / "thesis.txt").write_text("years of work")
    sentence = error_of(["quickstart", "--out", str(full)], capfd)
    assert (
        sentence == f"{full} is not an empty folder; choose another --out, or continue that run with --resume {full}."
    )
    assert (full / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--world.env", "agentgym/TextCarft-v0"], "There is no environment 'agentgym/TextCarft-v0'. Did you mean"),
        (["--world.env", "no_such_module:World-v0"], "The module of the environment no_such_module:World-v0 can't be"),
        (
            ["--world.options", "dept=(1,2)"],
            "agentgym/TextCraft-v0 has no option 'dept'. Did you mean 'depth'? Its options: depth, distractors, "
            "layout. --world.options KEY=VALUE ... replaces all options of the recipe; without values it removes them.",
        ),
        (["--world.options", "depth"], "is not of the form KEY=VALUE"),
        (["--model", "/no/such/model"], "The model /no/such/model can't be loaded"),
    ],
)
def test_missing_environments_options_and_models_are_rejected(
    flags: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert (
        train_cli(["textcraft-grpo", "--device", "cpu", "--precision", "no", *flags, "--out", str(tmp_path / "run")])
        == 2
    )
    err = capfd.readouterr().err
    assert "Traceback" not in err
    assert message in err.splitlines()[-1]


# Other recipes differ only in numbers, or need a JVM's gold paths or a browser; test_mixture.py covers mixtures.
@pytest.mark.parametrize("name", ["quickstart", pytest.param("searchqa-scaling", marks=pytest.mark.long)])
def test_tiny_recipes_complete_two_steps(name: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert train_cli([name, "--tiny", "--tags", "two", "one,a b", "--out", str(folder.path)]) == 0
    assert json.loads(folder.settings.read_text())["tags"] == ["a b", "one", "two"]
    lines = list(folder.read_metrics())
    assert [line["step"] for line in lines] == [1, 2]
    assert all("grad_norm" in line for line in lines)
    config = RECIPES[name].config
    assert lines[0]["horizon"] == config.horizon.begin().turns
    assert len(lines[0]["worlds"]) == len(config.worlds)
    for path in (folder.curve, folder.summary, folder.model / "model.safetensors"):
        assert path.exists()
    assert folder.evaluated_steps("sampled") == folder.evaluated_steps("greedy") == [0, 2]


def test_wrong_tag_is_rejected_before_anything_is_loaded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train_cli(["--tiny", "--tags", "!", "--out", str(tmp_path / "run")]) == 2
    assert capfd.readouterr().err.startswith("error: A tag begins with a letter or digit")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("arguments", [[], ["--plan"]])
def test_a_recipe_that_begins_with_another_ones_model_names_it(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train_cli(["dpo-textcraft", "--out", "run", *arguments]) == 2
    assert "First: uv run train sft-textcraft --out runs/sft-textcraft\n" in capfd.readouterr().err
    assert not any(tmp_path.iterdir())


def test_a_run_in_place_of_its_model_is_named(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", tiny(RECIPES["quickstart"].config), "quickstart")
    with pytest.raises(UsageError, match=f"{folder.path} is a run. It has no model yet."):
        resolve_model(str(folder.path))
    for name in ("step-000002", "step-000010"):
        (folder.checkpoints / name).mkdir(parents=True)
    with pytest.raises(UsageError, match=f"Its model is {folder.checkpoints / 'step-000010'}."):
        resolve_model(str(folder.path))
    folder.model.mkdir()
    with pytest.raises(UsageError, match=f"Its model is {folder.model}."):
        resolve_model(str(folder.path))


def test_run_that_cannot_start_leaves_no_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert train_cli(["--tiny", "--world.env", "agentgym/Texcraft-v0", "--out", str(out)]) == 2
    assert "Did you mean agentgym/TextCraft-v0?" in capfd.readouterr().err
    assert not out.exists()


@pytest.mark.long
def test_a_warm_start_is_kept_when_the_engine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise UsageError("It takes another engine.")

    out = tmp_path / "run"
    monkeypatch.setattr("agentgym_trainer.trainers.rl.open_engine", refused)
    assert train_cli(coin_flags(out)) == 2
    kept = f"It takes another engine. The warm start is kept: --model {out / 'start'} --warm-start.episodes 0 begins"
    assert kept in capfd.readouterr().err
    monkeypatch.undo()
    flags = (
        *coin_flags(tmp_path / "next"),
        "--model",
        str(out / "start"),
        "--warm-start.episodes",
        "0",
        "--steps",
        "1",
    )
    assert train_cli([*flags]) == 0


def test_a_run_that_ends_before_its_first_episode_is_not_said_to_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("the coin is square")

    monkeypatch.setattr(Coin, "_start", broken)
    assert train_cli(coin_flags(tmp_path / "run")) == 1
    assert "There was no progress to save yet; resume with: uv run train --resume" in capfd.readouterr().err


def test_failed_resume_leaves_the_run_unchanged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    config = replace(tiny(RECIPES["quickstart"].config), world=WorldConfig("agentgym/Gone-v0"))
    RunFolder.create(out, config, "quickstart")
    assert train_cli(["--resume", str(out)]) == 2
    assert "There is no environment 'agentgym/Gone-v0'" in capfd.readouterr().err
    assert (out / "run.json").is_file()


def test_run_locked_by_another_process_is_rejected(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(tmp_path / "run", tiny(RECIPES["quickstart"].config), "quickstart")
    with FolderLock(folder.path):
        before = {path: path.read_bytes() for path in folder.path.iterdir()}
        sentence = error_of(["--resume", str(folder.path)], capfd)
        assert sentence.startswith(f"Another process is using {folder.path}: process {os.getpid()} on ")
        assert {path: path.read_bytes() for path in folder.path.iterdir()} == before
    starting = tmp_path / "begun"
    with FolderLock(starting):  # by a process that hasn't written its settings yet
        assert "Another process is using" in error_of(["--tiny", "--out", str(starting)], capfd)
        assert [path.name for path in starting.iterdir()] == [".lock"]
    assert not starting.exists()


def test_run_whose_folder_was_taken_over_stops_and_writes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = json.dumps({"host": "elsewhere", "pid": 4711, "since": "2026-01-01 00:00:00 UTC", "key": "another"})
    folder, log, write_line = RunFolder(tmp_path / "run"), tmp_path / "log", RunFolder.log

    def stalled(self: RunFolder, line: Mapping[str, Any]) -> None:
        if line["step"] == 3:
            (folder.path / ".lock").write_text(taken)
        write_line(self, line)

    monkeypatch.setattr(RunFolder, "log", stalled)
    assert train_cli(coin_flags(folder.path), log) == 1
    error = log.read_text().splitlines()[-1]
    assert "process 4711 on elsewhere, since 2026-01-01 00:00:00 UTC, has taken over the lock on" in error
    assert "Traceback" not in log.read_text()
    assert [line["step"] for line in folder.read_metrics()] == [1, 2]
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["step-000002"]
    assert (folder.path / ".lock").read_text() == taken


def test_damaged_weights_are_named_with_what_to_do(tmp_path: Path) -> None:
    folder, log = RunFolder(tmp_path / "run"), tmp_path / "log"
    assert train_cli(coin_flags(folder.path, "--steps", "1", "--evaluation.no-test")) == 0
    weights = folder.start / "model.safetensors"
    copied, whole = tmp_path / "copy", weights.read_bytes()
    shutil.copytree(folder.start, copied)
    for damaged in (weights, copied / "model.safetensors"):
        os.truncate(damaged, len(whole) // 2)
    shutil.rmtree(folder.checkpoints)
    assert train_cli(["--resume", str(folder.path)], log) == 2
    sentence = log.read_text().splitlines()[-1]
    assert "Traceback" not in log.read_text()
    assert f"{weights} is damaged or incomplete: " in sentence
    assert sentence.endswith(f"If {folder.start} is of a run that created it, you may also remove it: --resume then "
                             "creates it again.")  # fmt: skip
    assert train_cli(coin_flags(tmp_path / "other", "--model", str(copied)), log) == 2
    sentence = log.read_text().splitlines()[-1]
    assert f"{copied / 'model.safetensors'} is damaged or incomplete: " in sentence
    assert sentence.endswith("Restore it from a copy, or download or export the model again.")
    shutil.rmtree(folder.start)
    assert train_cli(["--resume", str(folder.path)]) == 0
    assert weights.read_bytes() == whole


def test_killed_startup_does_not_block_a_new_run(tmp_path: Path) -> None:
    for name in (".lock", ".run.json.7-7.new"):
        (tmp_path / name).write_text('{"sch')
    folder = RunFolder.create(tmp_path, RECIPES["quickstart"].config, "quickstart")
    assert RunFolder.open(folder.path)[2] == "quickstart"
    with pytest.raises(UsageError, match="is not an empty folder"):
        RunFolder.create(tmp_path, RECIPES["quickstart"].config, "quickstart")


def test_quickstart_prints_errors_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise UsageError("There is no room.")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "resolve_name", lambda name: refuse)
    with pytest.raises(SystemExit) as end:
        cli.main([])
    assert end.value.code == 2
    assert capfd.readouterr().err.endswith("error: There is no room.\n")
    assert list(tmp_path.glob("runs/*")) == []


def test_resume_command_quotes_the_folder_for_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "resolve_name", lambda name: interrupted)
    out = tmp_path / "Ann's first run"
    assert train_cli(["--tiny", "--out", str(out)]) == 130
    last_line = capfd.readouterr().err.splitlines()[-1]
    assert shlex.split(last_line.removeprefix("Interrupted; resume with: ")) == [
        "uv",
        "run",
        "train",
        "--resume",
        str(out),
    ]
