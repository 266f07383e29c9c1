"""Finds a Chromium to run: the one of `install-browser`, else Playwright's own, else the machine's.

Knows no page and no flags. `install_browser` installs one where there is none.
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


def candidates(playwrights: str) -> Iterator[str | None]:
    """The programs to try, the best first.

    The packaged one comes first: it is installed only where no other starts. Playwright's own stands where it belongs
    when it is installed, and else last: an attempt to start what isn't there leaves folders behind.

    Args:
        playwrights: `executable_path` of Playwright's `chromium`, which names it whether or not it is there.
    """
    if packaged().is_file():
        yield str(packaged())
    here = _has_shell(Path(playwrights))
    if here:
        yield PLAYWRIGHTS
    if (own := on_path()) is not None:
        yield own
    if not here:
        yield PLAYWRIGHTS


def _has_shell(chromium: Path) -> bool:
    """Whether Playwright's headless shell is installed, in its folder beside that of Playwright's whole Chromium."""
    whole = next((folder for folder in chromium.parents if folder.name.startswith("chromium-")), None)
    return whole is not None and whole.with_name(whole.name.replace("chromium-", "chromium_headless_shell-")).is_dir()


@dataclass(frozen=True, slots=True)
class ChromiumAttempt:
    """A Chromium that was started, to see whether it does."""

    program: str | None
    """Its path, or `PLAYWRIGHTS`."""
    version: str = ""
    """Such as `153.0.8010.0`; empty where it doesn't start."""
    error: Exception | None = None
    """Why it doesn't: Playwright's."""


def attempts(*programs: str | None) -> list[ChromiumAttempt]:
    """Start one program after the other, and end it, until one has started.

    Args:
        *programs: Those to try; all `candidates` when there are none.

    Raises:
        DependencyNotInstalled: without Playwright.
    """
    with ThreadPoolExecutor(1) as thread:  # Playwright refuses a thread in which an asyncio loop runs, as in a notebook
        return thread.submit(_attempts, programs).result()


def _attempts(programs: Sequence[str | None]) -> list[ChromiumAttempt]:
    with brought_by("webarena"):
        from playwright.sync_api import Error, sync_playwright
    made = list[ChromiumAttempt]()
    with sync_playwright() as playwright:
        for program in programs or candidates(playwright.chromium.executable_path):
            try:
                browser = playwright.chromium.launch(executable_path=program)
            except Error as error:
                made.append(ChromiumAttempt(program, error=error))
            else:
                made.append(ChromiumAttempt(program, browser.version))
                browser.close()
                break
    return made


def find_chromium() -> str | None:
    """The program that worlds run, or `PLAYWRIGHTS`. It is started once.

    Raises:
        DependencyNotInstalled: when there is none that starts, or Playwright is missing; the message has the command.
    """
    *failed, last = attempts()
    if last.error is None:
        return last.program
    broken = [attempt.error for attempt in (*failed, last) if attempt.error and not is_missing(attempt.error)]
    if broken:
        why = str(broken[0]).strip().partition("\n")[0]
        raise DependencyNotInstalled(
            f"Chromium does not start ({why}). Install another: {command('install-browser')}"
        ) from broken[0]
    raise missing()


def is_missing(error: Exception | None) -> bool:
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
    elif on_path() is None and not packaged().is_file():
        find_chromium()
