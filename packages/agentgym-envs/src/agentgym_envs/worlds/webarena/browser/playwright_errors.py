"""The one place where Playwright's errors become ours. Knows nothing about what was being done."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from agentgym_envs.core.text_env import EnvFault

GONE = "The browser is gone."


class TabClosed(Exception):
    """The tab that something was done in closed meanwhile, as a page may close itself; the browser is well."""


@contextmanager
def playwright_errors() -> Generator[None]:
    """What Playwright raises in this block is told as our own.

    Raises:
        TabClosed: when what was worked on has closed.
        EnvFault: for every other error of Playwright's.
    """
    from playwright.async_api import Error

    try:
        yield
    except Error as error:
        if is_closed(error):
            raise TabClosed("The tab was closed while this was being done.") from error
        raise EnvFault(f"The browser failed: {first_line(error)}") from error


def is_closed(error: Exception) -> bool:
    """Whether `error`, of Playwright's, says that a page, its context or the browser is closed or crashed."""
    return type(error).__name__ == "TargetClosedError" or "Target closed" in str(error)


def is_lost(error: Exception) -> bool:
    """Whether `error`, of Playwright's, says that the document it asked went away, as it does in a navigation."""
    text = str(error)
    return any(
        said in text
        for said in (
            "context was destroyed",
            "Cannot find context",
            "uniqueContextId not found",
            "navigated or closed",
            "No frame for given id",
            "No frame with given id",
        )
    )


def first_line(error: Exception) -> str:
    """What `error` says, without Playwright's log of calls."""
    return (str(error).splitlines() or [""])[0]
