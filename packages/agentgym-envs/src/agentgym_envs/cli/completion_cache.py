"""A cache of the scripts for completion, so that a shell that asks for one at every start doesn't wait for it.

Making a script takes the help of all commands and thus their imports; a cached one takes a tenth of that time.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from agentgym_envs.util.files import cache_folder, write_whole

_SUFFIXES = (".py", ".json", ".toml")


def plugins() -> list[EntryPoint]:
    """Return what installed packages have registered for any of our packages, without importing it."""
    found = entry_points()
    return [point for group in found.groups if group.startswith("agentgym.") for point in found.select(group=group)]


def cached_script(shell: str, completed: Iterable[EntryPoint], make: Callable[[], str]) -> str:
    """Return the cached script for a shell, or make and cache it if a package has changed since.

    Args:
        shell: The shell.
        completed: The commands, and what installed packages have registered, whose names the script completes.
        make: Makes the script; its exceptions propagate, and nothing is cached then.
    """
    points = sorted((point.name, point.value) for point in completed)
    packages = sorted({value.partition(":")[0].partition(".")[0] for _, value in points})
    state = [sys.version, sys.prefix, str(points), *(_state(package) for package in packages)]
    name = f"{hashlib.sha256(repr(state).encode()).hexdigest()[:24]}-{shell}"
    with suppress(OSError, ValueError):
        return (cache_folder("completion") / name).read_text(encoding="utf-8")
    script = make()
    with suppress(OSError):  # without a cache folder, each call makes the script
        folder = cache_folder("completion")
        for old in folder.glob(f"*-{shell}"):
            old.unlink(missing_ok=True)
        write_whole(folder / name, script)
    return script


def _state(package: str) -> str:
    """Return a string that changes with the files of a package, without importing it."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return package
    folder = Path(spec.origin).parent
    files, newest = 0, 0
    for path, _, names in os.walk(folder):
        for name in names:
            if name.endswith(_SUFFIXES):
                with suppress(FileNotFoundError):
                    files, newest = files + 1, max(newest, Path(path, name).stat().st_mtime_ns)
    return f"{folder} {files} {newest}"
