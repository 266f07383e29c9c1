"""Files: where what can be made again is kept between runs, and how a file is written so that no reader sees half."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder(*parts: str) -> Path:
    """The folder `parts` in the user's cache folder of agentgym (on Linux `$XDG_CACHE_HOME/agentgym`), created."""
    folder = user_cache_path("agentgym").joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that whoever reads it sees the old content or the new one, never half; text as UTF-8.

    Several processes may write the same file at once; the last one stays.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.new")
    fresh.write_bytes(content.encode() if isinstance(content, str) else content)
    fresh.replace(path)
