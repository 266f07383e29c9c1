"""Where a run comes from: what every run's folder says of its beginning, so that it can be made again.

Knows nothing of settings, which runs note themselves. Nothing of it leaves the machine.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any

from agentgym_envs.util.redaction import redacted_words

_PACKAGES = (
    "accelerate",
    "agentgym-envs",
    "agentgym-eval",
    "agentgym-trainer",
    "gymnasium",
    "numpy",
    "peft",
    "playwright",
    "tokenizers",
    "torch",
    "transformers",
    "trl",
    "vllm",
)
_PATIENCE_S = 10.0
_DIRTY = "-dirty"


def provenance() -> dict[str, Any]:
    """What this process is, as JSON values.

    Returns:
        `command`, its words, with stars for what is secret among them; `folder`, where it was called, for paths among
        them; `started`, in UTC by ISO 8601; `versions` of what figures may depend on; and `git`, the state of the
        repository that this code lies in, or else of the one that the command was called in; None outside of any.
    """
    return {
        "command": redacted_words(sys.argv),
        "folder": str(Path.cwd()),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "git": git_state(Path(__file__).parent) or git_state(Path.cwd()),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that figures may depend on, without importing any."""
    found = {"python": python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def git_state(folder: Path) -> dict[str, Any] | None:
    """The `commit` that is checked out around a folder, and whether tracked files differ from it (`dirty`).

    None outside a repository, in one without commits, and where git isn't installed or doesn't answer.
    """
    asked = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=_PATIENCE_S).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": told.removesuffix(_DIRTY), "dirty": told.endswith(_DIRTY)}
