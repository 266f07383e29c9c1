"""Probes of `agentgym doctor` for the machine, for environments, and for the programs that these start.

What is heavy is imported by the probes, so that their names are there at once.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

from platformdirs import user_cache_path

from agentgym_envs.core.registration import WORLDS
from agentgym_envs.util.diagnosis import Finding, Probe, not_installed
from agentgym_envs.util.installation import command

_HERE = __name__
_JAVA = 17
"""The oldest Java that an environment starts."""
_LITTLE_DISK = 2**30
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def probes() -> Iterator[Probe]:
    """Yield the probes of this package."""
    yield Probe("python", f"{_HERE}:python")
    yield Probe("cores and memory", f"{_HERE}:machine")
    yield Probe("disk: cache", f"{_HERE}:disk", argument=str(user_cache_path("agentgym")))
    yield Probe("disk: working folder", f"{_HERE}:disk", argument=str(Path.cwd()))
    for world in WORLDS:
        yield Probe(world.short_name, f"{_HERE}:environment", argument=world.id)
    yield Probe("java", f"{_HERE}:java")
    yield Probe("chromium", f"{_HERE}:chromium")


def python() -> Finding:
    """Report Python and the operating system."""
    return Finding("ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def machine() -> Finding:
    """Report the cores and the memory that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [int(text) for path in _LIMITS if path.is_file() and (text := path.read_text().strip()).isdigit()]
    memory = min([total, *limits])
    return Finding("ok", f"{usable} cores, {memory / 1e9:.0f} GB of memory")


def disk(folder: str) -> Finding:
    """Report the free space on the disk of a folder, which may not exist yet, and whether it can be written to."""
    existing = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
    free = shutil.disk_usage(existing).free
    text = f"{folder}: {free / 1e9:.1f} GB free"
    if not os.access(existing, os.W_OK):
        return Finding("broken", f"{folder}: can't be written to", "use another folder (XDG_CACHE_HOME for the cache)")
    if free < _LITTLE_DISK:
        return Finding(
            "broken", text, "free some space, or use a folder on another disk (XDG_CACHE_HOME for the cache)"
        )
    return Finding("ok", text)


def environment(world_id: str) -> Finding:
    """Check that an environment can be created and has its programs."""
    from gymnasium.error import DependencyNotInstalled

    from agentgym_envs.core.registry import make, text_env

    try:
        env = make(world_id)
        text_env(env).check_dependencies()
        env.close()
    except (ImportError, DependencyNotInstalled) as error:
        return not_installed(error)
    return Finding("ok", world_id)


def java() -> Finding:
    """Start the Java that environments run."""
    from gymnasium.error import DependencyNotInstalled

    from agentgym_envs.util.java import find_java, java_version

    try:
        program = find_java(_JAVA)
    except DependencyNotInstalled as error:
        return not_installed(error)
    return Finding("ok", f"Java {java_version(program)} starts: {program}")


def chromium() -> Finding:
    """Start the Chromium that environments run."""
    from gymnasium.error import DependencyNotInstalled

    from agentgym_envs.util.chromium import attempts, is_missing, missing

    try:
        tried = attempts()
    except DependencyNotInstalled as error:
        return not_installed(error)
    last = tried[-1]
    if last.error is None:
        return Finding("ok", f"Chromium {last.version} starts: {last.program or 'installed by Playwright'}")
    present = [one for one in tried if not is_missing(one.error)]
    if not present:
        return not_installed(missing())
    reason = str(present[0].error).strip().partition("\n")[0]
    return Finding("broken", f"{present[0].program or 'Playwright'}: {reason}", command("install-browser"))
