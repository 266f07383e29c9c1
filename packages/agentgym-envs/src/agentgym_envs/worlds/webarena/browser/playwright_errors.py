"""Translate Playwright's errors into this package's."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from agentgym_envs.core.text_env import EnvFault

GONE = "The browser is gone."


class TabClosed(Exception):
    """The tab closed during an operation, for example because the page closed itself. The browser is still running."""


@contextmanager
def playwright_errors() -> Generator[None]:
    """Translate Playwright's errors that are raised in this block.

    Raises:
        TabClosed: if the page, its context or the browser has closed.
        EnvFault: for every other error of Playwright's.
    """
    from playwright.async_api import Error

    try:
        yield
    except Error as error:
        if is_closed(error):
            raise TabClosed("The tab closed during this operation.") from error
        raise EnvFault(f"The browser failed: {first_line(error)}") from error


def is_closed(error: Exception) -> bool:
    """Whether Playwright's `error` means that a page, its context or the browser is closed or crashed."""
    return type(error).__name__ == "TargetClosedError" or "Target closed" in str(error)


def is_lost(error: Exception) -> bool:
    """Whether Playwright's `error` means that the queried document is gone, as after a navigation."""
    text = str(error)
    return any(
        message in text
        for message in (
            "context was destroyed",
            "Cannot find context",
            "uniqueContextId not found",
            "navigated or closed",
            "No frame for given id",
            "No frame with given id",
        )
    )


def first_line(error: Exception) -> str:
    """Return the message of `error` without Playwright's call log."""
    return (str(error).splitlines() or [""])[0]
