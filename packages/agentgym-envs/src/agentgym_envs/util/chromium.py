"""Discovery of a Chromium: the one from `install-browser`, else Playwright's own, else the one on PATH.

`cli.browser_install` installs one if there is none.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gymnasium.error import DependencyNotInstalled
from platformdirs import user_cache_path

from agentgym_envs.util.extras import brought_by
from agentgym_envs.util.installation import command

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""Names of Chromium on PATH, the lightest first: a browser context takes 15 MB in the headless shell and 54 MB in
Chromium itself."""
DEBIAN = "apt-get install chromium-headless-shell"
PLAYWRIGHTS = None
"""The program path that means Playwright's own Chromium, as in `executable_path` of Playwright's `launch`."""


def packaged() -> Path:
    """Return the path where `install-browser` puts a Chromium from an npm package. It may not exist."""
    return user_cache_path("agentgym") / "chromium" / "chromium"


def on_path() -> str | None:
    """Return the Chromium on PATH, or None."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def candidates(playwrights: str) -> Iterator[str | None]:
    """Yield the programs to try, the best first.

    The packaged one comes first, because it is installed only if no other starts. Playwright's own comes second if it
    is installed, and otherwise last, because a failed attempt to start it leaves folders behind.

    Args:
        playwrights: `executable_path` of Playwright's `chromium`, which is set whether or not the file exists.
    """
    if packaged().is_file():
        yield str(packaged())
    is_installed = _has_shell(Path(playwrights))
    if is_installed:
        yield PLAYWRIGHTS
    if (own := on_path()) is not None:
        yield own
    if not is_installed:
        yield PLAYWRIGHTS


def _has_shell(chromium: Path) -> bool:
    """Whether Playwright's headless shell is installed, in the folder next to that of Playwright's full Chromium."""
    full = next((folder for folder in chromium.parents if folder.name.startswith("chromium-")), None)
    return full is not None and full.with_name(full.name.replace("chromium-", "chromium_headless_shell-")).is_dir()


@dataclass(frozen=True, slots=True)
class ChromiumAttempt:
    """The result of a trial start of a Chromium."""

    program: str | None
    """Its path, or `PLAYWRIGHTS`."""
    version: str = ""
    """A version such as `153.0.8010.0`; empty if it doesn't start."""
    error: Exception | None = None
    """Playwright's error if it doesn't start."""


def attempts(*programs: str | None) -> list[ChromiumAttempt]:
    """Start and stop one program after the other until one starts.

    Args:
        *programs: The programs to try; by default all `candidates`.

    Raises:
        DependencyNotInstalled: if Playwright is missing.
    """
    with ThreadPoolExecutor(1) as thread:  # Playwright refuses threads with a running asyncio loop, as in a notebook
        return thread.submit(_attempts, programs).result()


def _attempts(programs: Sequence[str | None]) -> list[ChromiumAttempt]:
    with brought_by("webarena"):
        from playwright.sync_api import Error, sync_playwright
    results = list[ChromiumAttempt]()
    with sync_playwright() as playwright:
        for program in programs or candidates(playwright.chromium.executable_path):
            try:
                browser = playwright.chromium.launch(executable_path=program)
            except Error as error:
                results.append(ChromiumAttempt(program, error=error))
            else:
                results.append(ChromiumAttempt(program, browser.version))
                browser.close()
                break
    return results


def find_chromium() -> str | None:
    """Return the program that environments run, or `PLAYWRIGHTS`, after a trial start.

    Raises:
        DependencyNotInstalled: if none starts, or Playwright is missing; the message gives the command.
    """
    *failed, last = attempts()
    if last.error is None:
        return last.program
    broken = [attempt.error for attempt in (*failed, last) if attempt.error and not is_missing(attempt.error)]
    if broken:
        reason = str(broken[0]).strip().partition("\n")[0]
        raise DependencyNotInstalled(
            f"Chromium does not start ({reason}). Install another: {command('install-browser')}"
        ) from broken[0]
    raise missing()


def is_missing(error: Exception | None) -> bool:
    """Whether `error`, from Playwright's `launch`, means that the program doesn't exist."""
    return "executable doesn't exist" in str(error).lower()


def missing(where: str = "on this machine") -> DependencyNotInstalled:
    """Return the error for a missing Chromium; its message gives the command that installs one.

    Args:
        where: The place for the message, as in "There is no Chromium at /opt/chromium".
    """
    debian = f", or {DEBIAN}" if shutil.which("apt-get") and os.geteuid() == 0 else ""
    return DependencyNotInstalled(f"There is no Chromium {where}. Install one: {command('install-browser')}{debian}")


def check_chromium(executable_path: str | None = None) -> None:
    """Check that a Chromium is installed.

    Args:
        executable_path: The program to run, which disables discovery.

    Raises:
        DependencyNotInstalled: if there is none, or Playwright is missing; the message gives the command.
    """
    if executable_path is not None:
        if not Path(executable_path).is_file():
            raise missing(f"at {executable_path}")
    elif on_path() is None and not packaged().is_file():
        find_chromium()
