"""A lock that lets one process at a time write into a folder, across hosts that share its file system."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from agentgym_eval.util.errors import RunStopped, UsageError

NAME = ".lock"
_BEAT = 5.0
"""Seconds between the holder's updates of the lock file's modification time."""
_WATCHED = 4
"""Number of heartbeat intervals without an update after which a holder on another host counts as dead."""
_logger = logging.getLogger(__name__)
_held: dict[Path, FolderLock] = {}
"""The locks that this process holds, by folder."""


class LockLost(RunStopped):
    """Another process has taken over the lock on a folder, since the holder was stalled."""


def check_lock(path: Path) -> None:
    """Check, before writing a file, that no lock of this process on a folder above it was taken over.

    Raises:
        LockLost: If another process has taken one over.
    """
    if _held:
        path = path.resolve()
        for folder in (path, *path.parents):
            if lock := _held.get(folder):
                lock.check()


class FolderLock:
    """An exclusive write lock on a folder: a file `.lock` in it that its holder has locked with flock and that records
    the holder's host and process id.

    The kernel releases a flock when its holder ends for any reason. Over a network file system, flock may not reach
    other hosts. The holder therefore updates the file's modification time every few seconds, and a process that finds a
    record of another host watches that time for 20 seconds before it takes the lock over. A holder that was stalled for
    so long finds the record of another one when it goes on, and must stop: see `check_lock`.
    """

    def __init__(self, folder: Path, *, pause: Callable[[float], object] = time.sleep) -> None:
        """Create the lock without acquiring it.

        Args:
            folder: Created with its parents on `acquire` if it doesn't exist. Created folders that are still empty on
                `release` are removed.
            pause: Sleeps for the given number of seconds.
        """
        self.folder = folder
        self.path = folder / NAME
        self._pause = pause
        self._file: int | None = None
        self._created: list[Path] = []
        self._key = ""
        self._released = threading.Event()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Acquire the lock.

        Raises:
            UsageError: If another process holds it; the message names the process and says what to do.
            OSError: If the folder can't be created or written to.
        """
        self._created = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        file, flock_works = self._open()
        try:
            self._refuse(_record(file), flock_works)
            since = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
            self._key = uuid4().hex  # containers may have the same host name and process id
            own = {"host": socket.gethostname(), "pid": os.getpid(), "since": since, "key": self._key}
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(own).encode(), 0)
            os.fsync(file)  # makes the record visible to other hosts
        except BaseException:
            os.close(file)
            raise
        self._file = file
        _held[self._place] = self
        self._released.clear()
        self._beating = threading.Thread(target=self._beat, args=(file,), name="agentgym-lock", daemon=True)
        self._beating.start()

    def release(self) -> None:
        """Release the lock; a no-op if it isn't held."""
        if self._file is None:
            return
        self._released.set()
        self._beating.join()
        if self.taken_by() is None and self._is_at_path(self._file):
            self.path.unlink()
        os.close(self._file)
        self._file = None
        if _held.get(self._place) is self:
            del _held[self._place]
        with suppress(OSError):  # the folder isn't empty
            for folder in self._created:
                folder.rmdir()

    def taken_by(self) -> str | None:
        """Describe the process that has taken over this held lock; None if there is none, as far as can be seen."""
        try:
            # Opening the file makes an NFS client revalidate its content with the server.
            with self.path.open("rb") as file:
                record = _record(file.fileno())
        except OSError:  # it was removed, or the file server is temporarily unreachable
            return None
        return _describe(record) if record and record["key"] != self._key else None

    def check(self) -> None:
        """Check that no other process has taken over this held lock.

        Raises:
            LockLost: If one has; the message names it.
        """
        if taker := self.taken_by():
            raise LockLost(
                f"This process was stalled for more than {_BEAT * _WATCHED:g} seconds, and {taker}, has taken over the "
                f"lock on {self.folder}. It writes there now, so this process stops without writing anything more."
            )

    @property
    def _place(self) -> Path:
        return self.folder.resolve()

    def _open(self) -> tuple[int, bool]:
        """Return the descriptor of the lock file, which still is at its path, and whether flock works on it.

        Raises:
            UsageError: If another process has locked it.
        """
        while True:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:
                continue  # the previous holder has just removed the folder
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                flock_works = True
            except BlockingIOError:
                record = _record(file)
                os.close(file)
                raise UsageError(self._in_use(record)) from None
            except OSError as error:
                if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                    os.close(file)
                    raise
                flock_works = False  # this file system doesn't support locks
            if self._is_at_path(file):
                return file, flock_works
            os.close(file)

    def _is_at_path(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), self.path.stat())
        except FileNotFoundError:
            return False

    def _refuse(self, record: Mapping[str, Any] | None, flock_works: bool) -> None:
        """Raise `UsageError` if the process that left the record may still be running."""
        if record is None:
            return
        if record["host"] == socket.gethostname():
            if flock_works or not _is_alive(record["pid"]):
                return
            if self._place in _held:
                raise UsageError(self._in_use(record))
            # A process of another container, or one that got the process id later, such as this one.
        _logger.warning(
            "%s is locked by %s, which did not release it; watching %s for %g seconds to see whether it still runs.",
            self.folder, _describe(record), self.path, _BEAT * _WATCHED,
        )  # fmt: skip
        before = self.path.stat().st_mtime_ns
        for _ in range(_WATCHED):
            self._pause(_BEAT)
            # Opening the file makes an NFS client revalidate its attributes with the server.
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_mtime_ns != before:
                    raise UsageError(self._in_use(record, watched=True))
        _logger.warning("It isn't; taking over the lock on %s.", self.folder)

    def _in_use(self, record: Mapping[str, Any] | None, *, watched: bool = False) -> str:
        unsure = watched or (record is not None and record["host"] != socket.gethostname())
        hint = f" If you know that it is no longer running, remove {self.path}." if unsure else ""
        return (
            f"Another process is using {self.folder}: {_describe(record)}. "
            f"Wait for it to finish, stop it, or choose another --out.{hint}"
        )

    def _beat(self, file: int) -> None:
        while not self._released.wait(_BEAT):
            if taker := self.taken_by():
                _logger.error("The lock on %s was taken over by %s; this process must stop.", self.folder, taker)
                return
            with suppress(OSError):  # the file server may be temporarily unreachable
                os.utime(file)


def _record(file: int) -> dict[str, Any] | None:
    """Read the holder's record; None if it is missing or incomplete."""
    try:
        record = json.loads(os.pread(file, 4096, 0))
        known = {"host": str(record["host"]), "pid": int(record["pid"]), "since": str(record["since"])}
        return {**known, "key": str(record.get("key", ""))}  # 0.2.0 wrote none
    except (ValueError, LookupError, TypeError):
        return None


def _describe(record: Mapping[str, Any] | None) -> str:
    return "process {pid} on {host}, since {since}".format(**record) if record else "it has not recorded its id yet"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it exists and belongs to another user
        return True
    return True
