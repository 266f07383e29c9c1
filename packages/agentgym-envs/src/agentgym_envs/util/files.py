"""Files: where what can be made again is kept between runs, and how a file is written so that no reader sees half."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder(*parts: str) -> Path:
    """The folder `parts` in the user's cache folder of agentgym (on Linux `$XDG_CACHE_HOME/agentgym`), created.

    Raises:
        OSError: when it can't be.
    """
    folder = user_cache_path("agentgym").joinpath(*parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"Nothing can be kept in {folder} ({error}); on Linux, XDG_CACHE_HOME names another.") from error
    return folder


def write_whole(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Write a file so that whoever reads it sees the old content or the new one, never half; text as UTF-8. With
    `durable`, the same holds after the power failed.

    Several processes may write the same file at once; the last one stays.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.new")
    try:
        with fresh.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)  # there only where it could not be written whole
