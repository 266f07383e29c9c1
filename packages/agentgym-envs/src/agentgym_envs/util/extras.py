"""What to say where a package of an extra is missing. Knows no package."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.util.installation import install


@contextmanager
def brought_by(extra: str) -> Generator[None]:
    """What is imported, or asked for its version, in this block comes with agentgym-envs's extra `extra`.

    Raises:
        DependencyNotInstalled: where it isn't there; the message has the command that brings it.
    """
    try:
        yield
    except ModuleNotFoundError as error:  # importlib.metadata's PackageNotFoundError is one, too
        raise DependencyNotInstalled(
            f"The package {error.name} is missing. Install it: {install(f'agentgym-envs[{extra}]')}"
        ) from error
