"""Which commands work in this installation: those that messages and reports tell the reader to type.

In a checkout of the repository that uv installed, commands are run by `uv run` and extras come with `uv sync`. Anywhere
else the programs are on PATH, and what is missing comes with the installer that was used, pip or uv.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

_OURS = re.compile(r"(agentgym-[a-z]+)(?:\[([a-z0-9-]+)\])?")


@dataclass(frozen=True, slots=True)
class Installation:
    """How these packages were installed."""

    checkout: bool
    """From a checkout of the repository, which is a workspace of uv's."""
    by_uv: bool
    """By uv; else by pip or something that works like it."""

    def command(self, name: str, *, ours: bool = True) -> str:
        """What to type for one of our commands, such as `view`, which alone is vim's on many machines, or for a program
        of another package, such as `wandb`.
        """
        if self.checkout and self.by_uv:
            return f"uv run {name}"
        return f"agentgym {name}" if ours else name

    def install(self, requirement: str, *, exact: bool = False) -> str:
        """What to type to add a package, or one with an extra.

        Args:
            requirement: As `agentgym-envs[pyserini]` or `mcp>=2`.
            exact: Whether packages of other extras have to go; a checkout can tell.
        """
        ours = _OURS.fullmatch(requirement)
        if not (ours and self.checkout and self.by_uv):
            return f"{'uv pip' if self.by_uv else 'pip'} install {shlex.quote(requirement)}"
        package, extra = ours.groups()
        named = f" --extra {extra}" if extra else ""
        return f"uv sync{named}" if exact else f"uv sync --inexact --package {package}{named}"


def found(source: Path, installer: str | None) -> Installation:
    """The installation whose package lies in the folder `source` and was put there by `installer`, as pip or uv."""
    root = next(iter(source.parents[3:]), source)
    checkout = (root / "uv.lock").is_file() and source == root / "packages/agentgym-envs/src/agentgym_envs"
    return Installation(checkout, by_uv=(installer or "").strip() == "uv")


@cache
def here() -> Installation:
    """The installation that is running."""
    try:
        installer = distribution("agentgym-envs").read_text("INSTALLER")
    except PackageNotFoundError:
        installer = None
    return found(Path(__file__).resolve().parents[1], installer)


def command(name: str, *, ours: bool = True) -> str:
    """What to type for a command, such as `view`: see `Installation.command`."""
    return here().command(name, ours=ours)


def package_version(package: str) -> str:
    """A package's name with the version that is installed, which commands print for `--version`."""
    return f"{package} {version(package)}"


def install(requirement: str, *, exact: bool = False) -> str:
    """What to type to add a package: see `Installation.install`."""
    return here().install(requirement, exact=exact)
