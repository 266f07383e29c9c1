"""Tests of the folder lock between processes of one host and of several hosts."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentgym_eval.storage import lock
from agentgym_eval.storage.lock import FolderLock
from agentgym_eval.util.errors import UsageError
from patience import eventually

HOLDER = """
import sys
from collections.abc import Iterator
from pathlib import Path
from agentgym_eval.storage.lock import FolderLock

with FolderLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def write_stale_lock(folder: Path, host: str, pid: int = 4711) -> Path:
    """Write the lock file of a process that didn't release the lock."""
    path = folder / lock.NAME
    path.write_text(json.dumps({"host": host, "pid": pid, "since": "2026-01-01 00:00:00 UTC"}))
    return path


def test_lock_names_its_holder_and_leaves_no_files(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "mine"
    with FolderLock(folder):
        record = json.loads((folder / ".lock").read_text())
        assert (record["host"], record["pid"]) == (socket.gethostname(), os.getpid())
        message = f"Another process is using {folder}: process {os.getpid()} on {socket.gethostname()}, since 20"
        with pytest.raises(UsageError, match=message) as refused:
            FolderLock(folder).acquire()
        assert "remove" not in str(refused.value), "the process is alive on this host"
        assert json.loads((folder / ".lock").read_text()) == record
    assert list(tmp_path.iterdir()) == []
    with FolderLock(folder):
        (folder / "kept").touch()
    assert [path.name for path in folder.iterdir()] == ["kept"]


def test_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
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


def test_holder_updates_the_modification_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_BEAT", 0.01)
    with FolderLock(tmp_path) as held_lock:
        os.utime(held_lock.path, (0, 0))
        eventually(lambda: held_lock.path.stat().st_mtime > 0)


@pytest.mark.parametrize("alive", [True, False])
def test_lock_of_another_host_is_watched_before_it_is_taken_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, alive: bool
) -> None:
    path = write_stale_lock(tmp_path, "elsewhere")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if alive and len(pauses) == 3:
            os.utime(path)

    waiting_lock = FolderLock(tmp_path, pause=pause)
    if alive:
        before = path.read_bytes()
        with pytest.raises(UsageError, match="process 4711 on elsewhere, since 2026") as refused:
            waiting_lock.acquire()
        assert str(refused.value).endswith(f"If you know that it is no longer running, remove {path}.")
        assert path.read_bytes() == before
    else:
        with waiting_lock:
            assert json.loads(path.read_text())["pid"] == os.getpid()
    assert sum(pauses) == (15 if alive else 20)
    assert "is locked by process 4711 on elsewhere" in caplog.text
    assert ("It isn't; taking over" in caplog.text) == (not alive)


def test_process_id_decides_if_file_locks_are_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    write_stale_lock(tmp_path, socket.gethostname(), ended.pid)
    with FolderLock(tmp_path), pytest.raises(UsageError, match=f"process {os.getpid()} on "):
        FolderLock(tmp_path).acquire()


@pytest.fixture
def taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FolderLock, FolderLock]]:
    """A lock whose holder was stalled, and that of the process on another host that has taken it over."""
    stalled, taker = FolderLock(tmp_path / "run"), FolderLock(tmp_path / "run", pause=lambda _: None)
    stalled.acquire()
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)  # over NFS, it may not reach other hosts
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, "gethostname", lambda: "elsewhere")
        taker.acquire()
    yield stalled, taker
    stalled.release()
    taker.release()


def test_a_stalled_holder_stops_writing_once_it_is_taken_over(
    taken_over: tuple[FolderLock, FolderLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled, taker = taken_over
    message = f"stalled for more than 20 seconds, and process {os.getpid()} on elsewhere, since 2.*, has taken over"
    with pytest.raises(lock.LockLost, match=message):
        stalled.check()
    taker.check()
    lock.check_lock(taker.path.parent.parent / "another" / "file")
    monkeypatch.setitem(lock._held, stalled.folder.resolve(), stalled)  # both are of this process, unlike elsewhere
    with pytest.raises(lock.LockLost, match=message):
        lock.check_lock(stalled.folder / "checkpoints" / "step-000001")


def test_a_stalled_holder_leaves_the_lock_to_its_new_holder(taken_over: tuple[FolderLock, FolderLock]) -> None:
    stalled, taker = taken_over
    stalled.release()
    assert taker.path.exists()
    taker.check()
    with pytest.raises(UsageError, match=f"process {os.getpid()} on elsewhere, since 2"):
        FolderLock(taker.folder, pause=lambda _: os.utime(taker.path)).acquire()


def test_a_stalled_holder_no_longer_beats(
    taken_over: tuple[FolderLock, FolderLock], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stalled, _ = taken_over
    monkeypatch.setattr(lock, "_BEAT", 0.01)
    assert stalled._file is not None
    os.utime(stalled.path, (0, 0))
    stalled._beat(stalled._file)  # returns
    assert "was taken over by process" in caplog.text
    assert stalled.path.stat().st_mtime == 0


@pytest.mark.parametrize("beating", [True, False])
def test_own_process_id_of_an_earlier_container_does_not_hold_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beating: bool
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    path = write_stale_lock(tmp_path, socket.gethostname(), os.getpid())
    lock_of_restarted = FolderLock(tmp_path, pause=lambda _: os.utime(path) if beating else None)
    if beating:  # by a container with the same host name
        with pytest.raises(UsageError, match=f"If you know that it is no longer running, remove {path}."):
            lock_of_restarted.acquire()
    else:
        with lock_of_restarted:
            lock_of_restarted.check()


@pytest.mark.parametrize("content", ["", '{"host": "n', "[]", '{"host": "n"}'])
def test_incomplete_lock_record_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / ".lock").write_text(content)
    with FolderLock(tmp_path):
        pass


def test_folder_that_cannot_be_created_raises_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        FolderLock(tmp_path / "file" / "run").acquire()


def test_removed_lock_can_be_acquired_by_another_process(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    first.acquire()
    first.path.unlink()
    second.acquire()
    first.release()
    assert second.path.exists(), "the first lock must not remove it"
    second.release()
    second.release()
    assert list(tmp_path.iterdir()) == []
