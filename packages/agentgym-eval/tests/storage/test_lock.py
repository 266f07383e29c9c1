"""One process at a time writes into a folder, on this host and on others."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from agentgym_eval.storage import lock
from agentgym_eval.storage.lock import FolderLock
from agentgym_eval.util.errors import UsageError
from patience import eventually

HOLDER = """
import sys
from pathlib import Path
from agentgym_eval.storage.lock import FolderLock

with FolderLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def left_by(folder: Path, host: str, pid: int = 4711) -> Path:
    """The file of a holder that didn't give the lock back."""
    path = folder / lock.NAME
    path.write_text(json.dumps({"host": host, "pid": pid, "since": "2026-01-01 00:00:00 UTC"}))
    return path


def test_a_lock_says_who_has_it_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "mine"
    with FolderLock(folder):
        record = json.loads((folder / ".lock").read_text())
        assert (record["host"], record["pid"]) == (socket.gethostname(), os.getpid())
        told = f"Another process is using {folder}: process {os.getpid()} on {socket.gethostname()}, since 20"
        with pytest.raises(UsageError, match=told) as refused:
            FolderLock(folder).acquire()
        assert "remove" not in str(refused.value), "it is here, and alive"
        assert json.loads((folder / ".lock").read_text()) == record
    assert list(tmp_path.iterdir()) == []
    with FolderLock(folder):
        (folder / "kept").touch()
    assert [path.name for path in folder.iterdir()] == ["kept"]


def test_another_process_is_kept_out_until_it_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=f"process {holder.pid} on "):
            FolderLock(tmp_path).acquire()
        holder.send_signal(signal.SIGKILL)
    assert (tmp_path / ".lock").exists()
    with FolderLock(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def test_the_holder_keeps_the_time_of_the_file_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_BEAT", 0.01)
    with FolderLock(tmp_path) as held:
        os.utime(held.path, (0, 0))
        eventually(lambda: held.path.stat().st_mtime > 0)


@pytest.mark.parametrize("beats", [True, False])
def test_the_lock_of_another_host_is_watched_before_it_is_taken_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, beats: bool
) -> None:
    path = left_by(tmp_path, "elsewhere")
    paused: list[float] = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if beats and len(paused) == 3:
            os.utime(path)

    later = FolderLock(tmp_path, pause=pause)
    if beats:
        before = path.read_bytes()
        with pytest.raises(UsageError, match="process 4711 on elsewhere, since 2026") as refused:
            later.acquire()
        assert str(refused.value).endswith(f"If you know that it is no longer running, remove {path}.")
        assert path.read_bytes() == before
    else:
        with later:
            assert json.loads(path.read_text())["pid"] == os.getpid()
    assert sum(paused) == (15 if beats else 20)
    assert "is locked by process 4711 on elsewhere" in caplog.text
    assert ("It isn't; taking over" in caplog.text) == (not beats)


def test_where_files_can_not_be_locked_the_process_id_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    left_by(tmp_path, socket.gethostname(), ended.pid)
    with FolderLock(tmp_path), pytest.raises(UsageError, match=f"process {os.getpid()} on "):
        FolderLock(tmp_path).acquire()


@pytest.mark.parametrize("content", ["", '{"host": "n', "[]", '{"host": "n"}'])
def test_half_a_record_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / ".lock").write_text(content)
    with FolderLock(tmp_path):
        pass


def test_a_folder_that_can_not_be_made_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        FolderLock(tmp_path / "file" / "run").acquire()


def test_a_lock_that_was_removed_is_another_s(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    first.acquire()
    first.path.unlink()
    second.acquire()
    first.release()
    assert second.path.exists(), "it isn't the first one's to remove"
    second.release()
    second.release()
    assert list(tmp_path.iterdir()) == []
