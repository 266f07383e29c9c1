"""The manifest that seals a checkpoint: the size and SHA-256 of every file, by which damage is detected."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"


def seal(folder: Path) -> None:
    """Write the manifest with the size and SHA-256 of every file, and sync everything to disk."""
    found = _files(folder)
    with ThreadPoolExecutor() as threads:
        fingerprints = threads.map(_fingerprint, found)
        files = {path.relative_to(folder).as_posix(): each for path, each in zip(found, fingerprints, strict=True)}
    for path in folder.rglob("*"):
        sync(path)
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")
    sync(manifest)
    sync(folder)


def find_damage(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None when all files match the manifest. Reads all of them."""
    try:
        files: dict[str, dict[str, Any]] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, sealed in files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != sealed["size"]:
                return f"{name} has {path.stat().st_size} bytes instead of {sealed['size']}"
        with ThreadPoolExecutor() as threads:
            fingerprints = threads.map(_fingerprint, [folder / name for name in files])
            for (name, sealed), found in zip(files.items(), fingerprints, strict=True):
                if found != sealed:
                    return f"{name} has other content than was written"
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"it can't be read: {error}"
    return None


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}
