"""The provenance of a run: the command, versions and commit that each run folder records so that it can be reproduced.

Settings are not part of it; runs record those themselves. Nothing is sent off the machine.
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
_TIMEOUT_S = 10.0
_DIRTY = "-dirty"


def provenance() -> dict[str, Any]:
    """Return the provenance of this process as JSON values.

    Returns:
        `command`, the command line with secrets replaced by stars; `folder`, the working directory that relative paths
        in it refer to; `started`, in UTC by ISO 8601; `versions` of packages that metrics may depend on; and `git`, the
        state of the repository that contains this code, or else of the one that contains the working directory; None
        outside of any.
    """
    return {
        "command": redacted_words(sys.argv),
        "folder": str(Path.cwd()),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "git": git_state(Path(__file__).parent) or git_state(Path.cwd()),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that metrics may depend on, without importing any."""
    installed = {"python": python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the checked-out `commit` of the repository around a folder, and whether tracked files differ (`dirty`).

    None outside a repository, in one without commits, and if git isn't installed or fails.
    """
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return None
    described = run.stdout.strip()
    return {"commit": described.removesuffix(_DIRTY), "dirty": described.endswith(_DIRTY)}
