"""What can't be written, as a sentence: which file, why, how much room there is where that is the reason, what next."""

from __future__ import annotations

import errno
import re
import resource
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from agentgym_eval.util.errors import RunStopped, UsageError
from safetensors import SafetensorError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_CODE = re.compile(r"\b(?:os error|code:) (\d+)")  # how errors from Rust end, those of safetensors and tokenizers
_PROBE = 1 << 20


class WriteError(OSError):
    """Something of a run can't be written; the message is a sentence that says what to do."""


@contextmanager
def writing(path: Path, *, then: str = "go on with --resume") -> Generator[None]:
    """Tell in a sentence why what is written in here can't be.

    Args:
        path: The file or folder.
        then: What to do with more room.

    Raises:
        CantWrite: for an error of the operating system, and for what torch, safetensors and tokenizers make of one.
    """
    try:
        yield
    except (WriteError, RunStopped, UsageError):
        raise
    except Exception as error:
        # What libraries raise when a file can't be written is no OSError; tokenizers raises a bare Exception.
        if not isinstance(error, OSError | RuntimeError | SafetensorError) and type(error) is not Exception:
            raise
        raise WriteError(why_not(path, error, then)) from error


def why_not(path: Path, error: BaseException, then: str) -> str:
    """The sentence. Free space is named only where there was too little of it, and not for a file that is missing or
    may not be written.
    """
    here = next((folder for folder in (path, *path.parents) if folder.is_dir()), path.parent)
    said = str(error).rstrip(".")
    if _number(error, here) in _FULL:
        free = shutil.disk_usage(here).free / 2**30
        return f"{path} can't be written: {said}. There are {free:.2f} GiB free; make room and {then}."
    return f"{path} can't be written: {said}. Mend that and {then}."


def _number(error: BaseException, folder: Path) -> int | None:
    """The operating system's number of an error, if there is one behind it."""
    for link in _chain(error):
        if isinstance(link, OSError) and link.errno is not None:
            return link.errno
        if found := _CODE.search(str(link)):
            return int(found[1])
    return _probed(folder) if isinstance(error, RuntimeError) else None


def _probed(folder: Path) -> int | None:
    """Why torch, whose streams don't say so, could not write here: a file of one's own finds out."""
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
        return errno.EFBIG
    try:
        with TemporaryFile(dir=folder, buffering=0) as probe:
            probe.write(bytes(_PROBE))
    except OSError as error:
        return error.errno
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def remove(path: Path) -> None:
    """Remove a file or folder as far as it is there."""
    with suppress(OSError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
