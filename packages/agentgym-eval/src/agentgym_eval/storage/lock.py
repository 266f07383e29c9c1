"""A folder that one process writes into at a time, on this host and on others that share its file system."""

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

from agentgym_eval.util.errors import UsageError

NAME = ".lock"
_BEAT = 5.0
"""Seconds after which the holder sets the file's time anew."""
_WATCHED = 4
"""Beats for which the file of another host is watched before its holder counts as gone."""
_logger = logging.getLogger(__name__)


class FolderLock:
    """The right to write into a folder: a file `.lock` in it, which its holder has locked (flock) and which records the
    holder's host and process id.

    The kernel frees a lock when its holder ends, whatever ends it. Over a network file system flock may not reach other
    hosts. So the holder sets the file's modification time anew every few seconds, and who finds the record of another
    host watches that time for 20 seconds before it takes the lock over.
    """

    def __init__(self, folder: Path, *, pause: Callable[[float], object] = time.sleep) -> None:
        """Lock nothing yet.

        Args:
            folder: Made, with those above it, when it isn't there; those that were made and are empty go with the lock.
            pause: Waits for so many seconds.
        """
        self.folder = folder
        self.path = folder / NAME
        self._pause = pause
        self._file: int | None = None
        self._made: list[Path] = []
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            UsageError: when another process has it; the message says which, and how to go on.
            OSError: when the folder can't be made or written to.
        """
        self._made = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        file, reaches = self._opened()
        try:
            self._refuse(_record(file), reaches)
            since = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
            own = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(own).encode(), 0)
            os.fsync(file)  # other hosts see it then
        except BaseException:
            os.close(file)
            raise
        self._file = file
        self._over.clear()
        self._beating = threading.Thread(target=self._beat, args=(file,), name="agentgym-lock", daemon=True)
        self._beating.start()

    def release(self) -> None:
        """Give the lock back. Nothing happens where it isn't held."""
        if self._file is None:
            return
        self._over.set()
        self._beating.join()
        if self._is_at_path(self._file):
            self.path.unlink()
        os.close(self._file)
        self._file = None
        with suppress(OSError):  # something lies there
            for folder in self._made:
                folder.rmdir()

    def _opened(self) -> tuple[int, bool]:
        """The file, which is at its path still, and whether it could be locked.

        Raises:
            UsageError: when another process has locked it.
        """
        while True:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:
                continue  # who gave the lock back has removed the folder just now
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                reaches = True
            except BlockingIOError:
                record = _record(file)
                os.close(file)
                raise UsageError(self._in_use(record)) from None
            except OSError as error:
                if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                    os.close(file)
                    raise
                reaches = False  # this file system has no locks
            if self._is_at_path(file):
                return file, reaches
            os.close(file)

    def _is_at_path(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), self.path.stat())
        except FileNotFoundError:
            return False

    def _refuse(self, record: Mapping[str, Any] | None, reaches: bool) -> None:
        """Raise `UsageError` when whoever left the record may be at work still."""
        if record is None:
            return
        if record["host"] == socket.gethostname():
            if not reaches and _is_alive(record["pid"]):
                raise UsageError(self._in_use(record))
            return
        _logger.warning(
            "%s was in use by %s, which didn't give it back; watching %s for %g seconds to see whether it is at work.",
            self.folder, _who(record), self.path, _BEAT * _WATCHED,
        )  # fmt: skip
        before = self.path.stat().st_mtime_ns
        for _ in range(_WATCHED):
            self._pause(_BEAT)
            # Opening it makes a client of NFS ask the server.
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_mtime_ns != before:
                    raise UsageError(self._in_use(record))
        _logger.warning("It isn't: going on in %s.", self.folder)

    def _in_use(self, record: Mapping[str, Any] | None) -> str:
        elsewhere = record is not None and record["host"] != socket.gethostname()
        gone = f" If you know that it is gone, remove {self.path}." if elsewhere else ""
        return (
            f"Another process is at work in {self.folder}: {_who(record)}. "
            f"Wait for it, end it, or choose another --out.{gone}"
        )

    def _beat(self, file: int) -> None:
        while not self._over.wait(_BEAT):
            with suppress(OSError):  # the server of the file system is away for a while
                os.utime(file)


def _record(file: int) -> dict[str, Any] | None:
    """What the holder has noted; None where nothing is, or half of it."""
    try:
        record = json.loads(os.pread(file, 4096, 0))
        return {"host": str(record["host"]), "pid": int(record["pid"]), "since": str(record["since"])}
    except (ValueError, LookupError, TypeError):
        return None


def _who(record: Mapping[str, Any] | None) -> str:
    return "process {pid} on {host}, since {since}".format(**record) if record else "it hasn't said which yet"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is somebody else's
        return True
    return True
