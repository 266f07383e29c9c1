"""Trackers in their offline modes, for real, and what becomes of a run when one of them fails."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.config import BaseConfig, RLConfig
from agentgym_trainer.run import trackers
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.run.trackers import flat, open_trackers
from dev_packages import need
from toy_learner import coin_flags, train_cli


def line(step: int) -> dict[str, Any]:
    worlds = {"agentgym/TextCraft-v0": {"success": 0.25, "dev": {}}}
    stage, warning = {"number": 0, "why": "begin"}, {"id": "flat-groups", "sentence": "Nothing was learned."}
    figures = {"success": step / 8, "score": None, "stage": stage, "worlds": worlds}
    return {"step": step, **figures, "warnings": [warning] if step == 4 else []}


class Noted:
    """A tracker that is a list."""

    where = "in a list"

    def __init__(self, config: BaseConfig, folder: RunFolder) -> None:
        self.lines: list[Any] = []
        Noted.last = self

    def log(self, step: int, figures: dict[str, float]) -> None:
        if step == 3:
            raise RuntimeError("it is full")
        self.lines.append((step, figures))

    def close(self, *, done: bool) -> None:
        self.lines.append(done)

    last: Noted


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trackers._KNOWN, "trackio", Noted)
    monkeypatch.setattr(trackers, "find_spec", lambda name: name)


def folder_of(path: Path, config: BaseConfig) -> RunFolder:
    return RunFolder.create(path / "run", config, "test")


def test_figures_have_the_names_that_they_have_in_the_folder() -> None:
    assert flat(line(4)) == {
        "step": 4, "success": 0.5, "stage/number": 0, "worlds/agentgym/TextCraft-v0/success": 0.25,
        "warnings": 1,
    }  # fmt: skip


@pytest.mark.usefixtures("noted")
def test_lines_of_the_metrics_go_to_the_tracker_while_it_is_open(tmp_path: Path) -> None:
    config, said = RLConfig(track=("trackio",)), list[str]()
    folder = folder_of(tmp_path, config)
    with open_trackers(config, folder, said.append):
        folder.log(line(1))
        folder.log(line(2))
    folder.log(line(4))
    assert Noted.last.lines == [(1, flat(line(1))), (2, flat(line(2))), True]
    assert said == ["trackio tracks this run in a list"]
    assert len(list(folder.read_metrics())) == 3


@pytest.mark.usefixtures("noted")
def test_a_tracker_that_fails_is_told_of_and_the_run_goes_on(tmp_path: Path) -> None:
    config, said = RLConfig(track=("trackio",)), list[str]()
    folder = folder_of(tmp_path, config)
    with open_trackers(config, folder, said.append):
        for step in (2, 3, 4):
            folder.log(line(step))
    assert Noted.last.lines == [(2, flat(line(2)))]
    assert said[1:] == [
        "The tracker trackio failed and no longer tracks this run (it is full); metrics.jsonl has all metrics."
    ]
    assert [known["step"] for known in folder.read_metrics()] == [2, 3, 4]


@pytest.mark.usefixtures("noted")
def test_a_sitting_that_breaks_off_is_told_as_such(tmp_path: Path) -> None:
    config = RLConfig(track=("trackio",))
    folder = folder_of(tmp_path, config)
    with pytest.raises(KeyboardInterrupt), open_trackers(config, folder, lambda _: None):
        raise KeyboardInterrupt
    assert Noted.last.lines == [False]
    assert folder.listener is None


@pytest.mark.usefixtures("noted")
def test_where_one_tracker_cannot_be_had_the_others_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(config: BaseConfig, folder: RunFolder) -> Noted:
        raise RuntimeError("no key.")

    monkeypatch.setitem(trackers._KNOWN, "wandb", refuse)
    config = RLConfig(track=("trackio", "wandb"))
    with pytest.raises(UsageError, match="no key"), open_trackers(config, folder_of(tmp_path, config), lambda _: None):
        pass
    assert Noted.last.lines == [False]


def test_without_a_tracker_nothing_of_them_is_imported(tmp_path: Path) -> None:
    before = set(sys.modules)
    with open_trackers(RLConfig(), folder_of(tmp_path, RLConfig()), lambda _: None):
        pass
    assert not {"trackio", "wandb"} & (set(sys.modules) - before)


def test_a_tracker_that_is_not_installed_is_one_sentence_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    assert train_cli(coin_flags(tmp_path / "run", "--track", "wandb")) == 2
    said = capsys.readouterr().err
    assert "The tracker wandb isn't installed: uv sync --inexact --package agentgym-trainer --extra wandb" in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_there_is_not_is_refused(tmp_path: Path) -> None:
    assert train_cli(coin_flags(tmp_path / "run", "--track", "tensorboard")) == 2
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_refuses_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("no key.")

    monkeypatch.setitem(trackers._KNOWN, "wandb", refuse)
    monkeypatch.setattr(trackers, "find_spec", lambda name: name)
    config = RLConfig(track=("wandb",))
    with (
        pytest.raises(UsageError, match=r"wandb can't track this run: no key\. WANDB_MODE=offline keeps"),
        open_trackers(config, folder_of(tmp_path, config), lambda _: None),
    ):
        pass


# The trackers themselves, in a process of their own: both keep threads and global state.

SITTINGS = """
import json
import sys
from pathlib import Path
from agentgym_trainer.config import RLConfig
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.run.trackers import open_trackers

config = RLConfig(track=(sys.argv[1],), project="tested")
folder = RunFolder.create(Path(sys.argv[2]), config, "test")
for sitting in ((1, 2), (2, 3)):
    with open_trackers(config, folder, print):
        for step in sitting:
            folder.log(json.loads(sys.argv[3])[step])
"""


@pytest.fixture
def sit(tmp_path: Path) -> Callable[..., str]:
    """Two sittings of a run with a tracker, and what is printed."""

    def run(tracker: str, **environment: str) -> str:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "TRACKIO_"))}
        lines = json.dumps([line(step) for step in range(4)])
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SITTINGS, tracker, str(tmp_path / "run"), lines],
            check=False, capture_output=True, text=True, timeout=300,
            env=own | environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run


@pytest.mark.long
def test_trackio_keeps_one_run_on_this_machine_over_all_sittings(sit: Callable[..., str], tmp_path: Path) -> None:
    need("trackio")
    said = sit("trackio", TRACKIO_DIR=str(tmp_path / "trackio"), HF_HUB_OFFLINE="1")
    folder = RunFolder(tmp_path / "run")
    name = f"run-{folder.id[:8]}"
    assert (
        said.splitlines()
        == [f"trackio tracks this run as {name}; to view it: uv run trackio show --project tested"] * 2
    )
    with sqlite3.connect(tmp_path / "trackio" / "tested.db") as database:
        rows = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
        configs = database.execute("SELECT config FROM configs").fetchall()
    assert [(run, step) for run, step, _ in rows] == [(name, 1), (name, 2), (name, 2), (name, 3)]
    for _, step, metrics in rows:
        assert json.loads(metrics) == {key: value for key, value in flat(line(step)).items() if key != "step"}
    assert json.loads(configs[0][0])["steps"] == RLConfig().steps


@pytest.mark.long
def test_wandb_offline_keeps_one_run_in_the_folder_over_all_sittings(sit: Callable[..., str], tmp_path: Path) -> None:
    need("wandb")
    said = sit("wandb", WANDB_MODE="offline")
    folder = RunFolder(tmp_path / "run")
    assert said.startswith("wandb tracks this run offline; to upload it: uv run wandb sync ")
    kept = sorted((folder.path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert {path.name for path in kept} == {f"run-{folder.id}.wandb"}
    logged = [row for path in kept for row in _logged(path)]
    assert sorted(row["step"] for row in logged) == [1, 2, 2, 3]
    for row in logged:
        assert row == flat(line(row["step"]))


def _logged(path: Path) -> Iterator[dict[str, Any]]:
    """The rows in a file of wandb's: records of protocol buffers in a log as LevelDB's (doc/log_format.md there)."""
    from wandb.proto import wandb_internal_pb2

    data, at, block = path.read_bytes(), 7, 32_768
    while at < len(data):
        if block - at % block < 7:
            at += block - at % block
        _, length, kind = struct.unpack_from("<IHB", data, at)
        assert kind == 1, "rows as small as these are in one piece"
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data[at + 7 : at + 7 + length])
        at += 7 + length
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            yield {name: json.loads(value) for name, value in items.items() if not name.startswith("_")}
