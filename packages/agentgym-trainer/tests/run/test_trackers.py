"""Tests of experiment trackers: real ones in their offline modes, and trackers that fail."""

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
from dev_packages import require_packages
from toy_learner import coin_flags, train_cli


def line(step: int) -> dict[str, Any]:
    worlds = {"agentgym/TextCraft-v0": {"success": 0.25, "dev": {}}}
    stage, warning = {"number": 0, "why": "begin"}, {"id": "flat-groups", "sentence": "Nothing was learned."}
    metrics = {"success": step / 8, "score": None, "stage": stage, "worlds": worlds}
    return {"step": step, **metrics, "warnings": [warning] if step == 4 else []}


class ListTracker:
    """A tracker that appends to a list."""

    where = "in a list"

    def __init__(self, config: BaseConfig, folder: RunFolder) -> None:
        self.lines: list[Any] = []
        ListTracker.last = self

    def log(self, step: int, metrics: dict[str, float]) -> None:
        if step == 3:
            raise RuntimeError("it is full")
        self.lines.append((step, metrics))

    def close(self, *, done: bool) -> None:
        self.lines.append(done)

    last: ListTracker


@pytest.fixture
def list_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trackers._KNOWN, "trackio", ListTracker)
    monkeypatch.setattr(trackers, "find_spec", lambda name: name)


def folder_of(path: Path, config: BaseConfig) -> RunFolder:
    return RunFolder.create(path / "run", config, "test")


def test_flat_joins_the_names_of_nested_metrics() -> None:
    assert flat(line(4)) == {
        "step": 4, "success": 0.5, "stage/number": 0, "worlds/agentgym/TextCraft-v0/success": 0.25,
        "warnings": 1,
    }  # fmt: skip


@pytest.mark.usefixtures("list_tracker")
def test_metrics_are_sent_to_an_open_tracker(tmp_path: Path) -> None:
    config, messages = RLConfig(track=("trackio",)), list[str]()
    folder = folder_of(tmp_path, config)
    with open_trackers(config, folder, messages.append):
        folder.log(line(1))
        folder.log(line(2))
    folder.log(line(4))
    assert ListTracker.last.lines == [(1, flat(line(1))), (2, flat(line(2))), True]
    assert messages == ["trackio tracks this run in a list"]
    assert len(list(folder.read_metrics())) == 3


@pytest.mark.usefixtures("list_tracker")
def test_failed_tracker_is_reported_and_the_run_continues(tmp_path: Path) -> None:
    config, messages = RLConfig(track=("trackio",)), list[str]()
    folder = folder_of(tmp_path, config)
    with open_trackers(config, folder, messages.append):
        for step in (2, 3, 4):
            folder.log(line(step))
    assert ListTracker.last.lines == [(2, flat(line(2)))]
    assert messages[1:] == [
        "The tracker trackio failed and no longer tracks this run (it is full); metrics.jsonl has all metrics."
    ]
    assert [logged["step"] for logged in folder.read_metrics()] == [2, 3, 4]


@pytest.mark.usefixtures("list_tracker")
def test_interrupted_run_is_not_closed_as_done(tmp_path: Path) -> None:
    config = RLConfig(track=("trackio",))
    folder = folder_of(tmp_path, config)
    with pytest.raises(KeyboardInterrupt), open_trackers(config, folder, lambda _: None):
        raise KeyboardInterrupt
    assert ListTracker.last.lines == [False]
    assert folder.listener is None


@pytest.mark.usefixtures("list_tracker")
def test_other_trackers_are_closed_if_one_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(config: BaseConfig, folder: RunFolder) -> ListTracker:
        raise RuntimeError("no key.")

    monkeypatch.setitem(trackers._KNOWN, "wandb", refuse)
    config = RLConfig(track=("trackio", "wandb"))
    with pytest.raises(UsageError, match="no key"), open_trackers(config, folder_of(tmp_path, config), lambda _: None):
        pass
    assert ListTracker.last.lines == [False]


def test_unused_trackers_are_not_imported(tmp_path: Path) -> None:
    before = set(sys.modules)
    with open_trackers(RLConfig(), folder_of(tmp_path, RLConfig()), lambda _: None):
        pass
    assert not {"trackio", "wandb"} & (set(sys.modules) - before)


def test_missing_tracker_package_is_reported_without_a_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    assert train_cli(coin_flags(tmp_path / "run", "--track", "wandb")) == 2
    error = capsys.readouterr().err
    assert "The tracker wandb isn't installed: uv sync --inexact --package agentgym-trainer --extra wandb" in error
    assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


def test_unknown_tracker_is_rejected(tmp_path: Path) -> None:
    assert train_cli(coin_flags(tmp_path / "run", "--track", "tensorboard")) == 2
    assert not (tmp_path / "run").exists()


def test_tracker_that_cannot_start_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# Real trackers run in a subprocess, since they keep threads and global state.

SESSIONS = """
import json
import sys
from pathlib import Path
from agentgym_trainer.config import RLConfig
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.run.trackers import open_trackers

config = RLConfig(track=(sys.argv[1],), project="tested")
folder = RunFolder.create(Path(sys.argv[2]), config, "test")
for session in ((1, 2), (2, 3)):
    with open_trackers(config, folder, print):
        for step in session:
            folder.log(json.loads(sys.argv[3])[step])
"""


@pytest.fixture
def run_sessions(tmp_path: Path) -> Callable[..., str]:
    """Run two sessions of a run with a tracker in a subprocess, and return the output."""

    def run(tracker: str, **environment: str) -> str:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "TRACKIO_"))}
        lines = json.dumps([line(step) for step in range(4)])
        process = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SESSIONS, tracker, str(tmp_path / "run"), lines],
            check=False, capture_output=True, text=True, timeout=300,
            env=inherited | environment,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr[-3000:]
        return process.stdout

    return run


@pytest.mark.long
def test_trackio_keeps_one_run_over_all_sessions(run_sessions: Callable[..., str], tmp_path: Path) -> None:
    require_packages("trackio")
    output = run_sessions("trackio", TRACKIO_DIR=str(tmp_path / "trackio"), HF_HUB_OFFLINE="1")
    folder = RunFolder(tmp_path / "run")
    name = f"run-{folder.id[:8]}"
    assert (
        output.splitlines()
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
def test_wandb_offline_keeps_one_run_over_all_sessions(run_sessions: Callable[..., str], tmp_path: Path) -> None:
    require_packages("wandb")
    output = run_sessions("wandb", WANDB_MODE="offline")
    folder = RunFolder(tmp_path / "run")
    assert output.startswith("wandb tracks this run offline; to upload it: uv run wandb sync ")
    files = sorted((folder.path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert {path.name for path in files} == {f"run-{folder.id}.wandb"}
    logged = [row for path in files for row in _logged(path)]
    assert sorted(row["step"] for row in logged) == [1, 2, 2, 3]
    for row in logged:
        assert row == flat(line(row["step"]))


def _logged(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a wandb file: protocol buffer records in a log like LevelDB's (see its doc/log_format.md)."""
    from wandb.proto import wandb_internal_pb2

    data, offset, block = path.read_bytes(), 7, 32_768
    while offset < len(data):
        if block - offset % block < 7:
            offset += block - offset % block
        _, length, kind = struct.unpack_from("<IHB", data, offset)
        assert kind == 1, "rows this small are stored in one piece"
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data[offset + 7 : offset + 7 + length])
        offset += 7 + length
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            yield {name: json.loads(value) for name, value in items.items() if not name.startswith("_")}
