"""File helpers: the cache folder for reproducible data, and atomic writes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder(*parts: str) -> Path:
    """Create and return the folder `parts` in the user's agentgym cache (on Linux `$XDG_CACHE_HOME/agentgym`).

    Raises:
        OSError: if it can't be created.
    """
    folder = user_cache_path("agentgym").joinpath(*parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"The cache folder {folder} can't be created ({error}). On Linux, set XDG_CACHE_HOME to another folder."
        ) from error
    return folder


def write_whole(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Write a file atomically: readers see either the old or the new content. Text is encoded as UTF-8.

    With `durable`, this also holds after a power failure. Several processes may write the same file concurrently; the
    last one wins.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.new")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # exists only if writing failed
