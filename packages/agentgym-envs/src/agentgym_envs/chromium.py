"""Finds a Chromium to run: the one of `install-browser`, else Playwright's own, else the machine's.

Knows no page and no flags. `install_browser` installs one where there is none.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gymnasium.error import DependencyNotInstalled
from platformdirs import user_cache_path

from agentgym_envs.installation import command
from agentgym_envs.retrieval.extras import brought_by

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""What Chromium is called on a PATH, the lightest first: a context takes 15 MB in the headless shell and 54 in
Chromium itself."""
DEBIAN = "apt-get install chromium-headless-shell"
PLAYWRIGHTS = None
"""Stands for Playwright's own Chromium, as in `executable_path` of Playwright's `launch`."""


def packaged() -> Path:
    """Where `install-browser` puts a Chromium that it takes from a package; there may be none."""
    return user_cache_path("agentgym") / "chromium" / "chromium"


def on_path() -> str | None:
    """The machine's own Chromium, if it has one."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def candidates() -> Iterator[str | None]:
    """The programs to try, the best first; `PLAYWRIGHTS` is among them whether or not it is installed.

    The packaged one comes first: it is installed only where no other starts.
    """
    if packaged().is_file():
        yield str(packaged())
    yield PLAYWRIGHTS
    if (own := on_path()) is not None:
        yield own


def find_chromium() -> str | None:
    """The program to start, or `PLAYWRIGHTS`.

    Raises:
        DependencyNotInstalled: when there is none, or Playwright is missing; the message has the command.
    """
    for program in candidates():
        if program is not PLAYWRIGHTS or _playwrights_is_there():
            return program
    raise missing()


def is_missing(error: Exception) -> bool:
    """Whether `error`, of Playwright's `launch`, says that the program isn't there."""
    return "executable doesn't exist" in str(error).lower()


def missing(where: str = "on this machine") -> DependencyNotInstalled:
    """The error to raise where there is no Chromium; its message has the command that installs one.

    Args:
        where: As in "There is no Chromium at /opt/chromium".
    """
    debian = f", or {DEBIAN}" if shutil.which("apt-get") and os.geteuid() == 0 else ""
    return DependencyNotInstalled(f"There is no Chromium {where}. Install one: {command('install-browser')}{debian}")


def check_chromium(executable_path: str | None = None) -> None:
    """See that there is a Chromium to run.

    Args:
        executable_path: The one to run, instead of any that is found.

    Raises:
        DependencyNotInstalled: when there is none, or Playwright is missing; the message has the command.
    """
    if executable_path is not None:
        if not Path(executable_path).is_file():
            raise missing(f"at {executable_path}")
    elif on_path() is None:  # which is asked first, as it starts nothing
        find_chromium()


def _playwrights_is_there() -> bool:
    """Whether Playwright's own Chromium is installed, which only an attempt to start it tells."""
    with brought_by("webarena"):
        from playwright.sync_api import Error
    try:
        version(PLAYWRIGHTS)
    except Error as error:
        return not is_missing(error)
    return True


def version(program: str | None) -> str:
    """Start a Chromium and end it.

    Args:
        program: Its path, or `PLAYWRIGHTS`.

    Returns:
        Its version, such as `153.0.8010.0`.

    Raises:
        DependencyNotInstalled: without Playwright.
        playwright.sync_api.Error: when it doesn't start.
    """
    with ThreadPoolExecutor(1) as thread:  # Playwright refuses a thread in which an asyncio loop runs, as in a notebook
        return thread.submit(_version, program).result()


def _version(program: str | None) -> str:
    with brought_by("webarena"):
        from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        try:
            return browser.version
        finally:
            browser.close()
