"""Readable errors for files that can't be written: which file, why, which limit was reached, what to do."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from agentgym_eval.storage.lock import check_lock
from agentgym_eval.util.errors import RunStopped, UsageError
from safetensors import SafetensorError

_CODE = re.compile(r"\b(?:os error|code:) (\d+)")  # in errors from Rust, which safetensors and tokenizers raise
_PROBE = 1 << 20


class WriteError(OSError):
    """A file of a run can't be written; the message says why and what to do."""


@contextmanager
def writing(path: Path, *, then: str = "continue with --resume") -> Generator[None]:
    """Turn errors on writing within the block into `WriteError`.

    Args:
        path: The file or folder that is written.
        then: What to do after the problem is fixed, as the end of a sentence.

    Raises:
        WriteError: for an OSError, and for the errors that torch, safetensors and tokenizers raise instead of one.
        LockLost: before the block, when another process has taken over the lock on the run's folder.
    """
    check_lock(path)
    try:
        yield
    except (WriteError, RunStopped, UsageError):
        raise
    except Exception as error:
        # Libraries raise other errors than OSError when a file can't be written; tokenizers raises a bare Exception.
        if not isinstance(error, OSError | RuntimeError | SafetensorError) and type(error) is not Exception:
            raise
        raise WriteError(_message(path, error, then)) from error


def _message(path: Path, error: BaseException, then: str) -> str:
    folder = next((folder for folder in (path, *path.parents) if folder.is_dir()), path.parent)
    advice = _advice(_errno(error, folder), folder)
    return f"{path} can't be written: {str(error).rstrip('.')}. {advice} and {then}."


def _advice(code: int | None, folder: Path) -> str:
    """Return the limit that was reached, as far as it can be determined, and how to lift it.

    The free space of a file system doesn't include quotas, so it is reported only if the file system is full.
    """
    match code:
        case errno.ENOSPC:
            disk = os.statvfs(folder)
            if disk.f_files and not disk.f_favail:
                return "The file system has no free inodes; delete files"
            free = disk.f_bavail * disk.f_frsize / 2**30
            return f"The file system has {free:.2f} GiB free, of which a quota may allow less; make space"
        case errno.EDQUOT:
            return "Your disk quota is used up; make space or raise the quota"
        case errno.EFBIG:
            return "The file system or `ulimit -f` doesn't allow files of this size; raise the limit"
        case _:
            return "Fix that"


def _errno(error: BaseException, folder: Path) -> int | None:
    """Return the errno that caused an error, or None if there is none."""
    for link in _chain(error):
        if isinstance(link, OSError) and link.errno is not None:
            return link.errno
        if found := _CODE.search(str(link)):
            return int(found[1])
    return _probed(folder) if isinstance(error, RuntimeError) else None


def _probed(folder: Path) -> int | None:
    """Find out by writing a test file why torch, whose errors don't contain the errno, could not write here."""
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
        return errno.EFBIG
    try:
        with TemporaryFile(dir=folder, buffering=0) as probe:
            probe.write(bytes(_PROBE))
    except OSError as error:
        return error.errno
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def remove(path: Path) -> None:
    """Remove a file or folder if it exists, ignoring errors."""
    with suppress(OSError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
