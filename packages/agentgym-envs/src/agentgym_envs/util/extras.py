"""Errors for missing packages of an extra."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from agentgym_envs.util.installation import install


@contextmanager
def brought_by(extra: str) -> Generator[None]:
    """Declare that the packages imported in this block, or whose version it looks up, belong to the extra `extra`.

    Raises:
        DependencyNotInstalled: if one is missing; the message gives the command that installs the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:  # a superclass of importlib.metadata's PackageNotFoundError
        from gymnasium.error import DependencyNotInstalled

        raise DependencyNotInstalled(
            f"The package {error.name} is missing. Install it: {install(f'agentgym-envs[{extra}]')}"
        ) from error
