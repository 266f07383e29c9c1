"""The commands that work in this installation, for messages and reports that tell the user what to type.

In a checkout of the repository that uv installed, `uv run` runs commands and `uv sync` installs extras. Otherwise the
programs are on PATH, and the installer that was used, pip or uv, installs missing packages.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

_OURS = re.compile(r"(agentgym-[a-z]+)(?:\[([a-z0-9-]+)\])?")


@dataclass(frozen=True, slots=True)
class Installation:
    """The way in which these packages were installed."""

    checkout: Path | None
    """The checkout of the repository, which is a uv workspace; None if it was installed from wheels."""
    by_uv: bool
    """Whether by uv; otherwise by pip or a compatible installer."""

    def command(self, name: str, *, ours: bool = True, folder: Path | None = None) -> str:
        """Return the command line for one of our commands, or with `ours=False` for a program such as `wandb`.

        Without `uv run`, our commands get the prefix `agentgym`, since a bare `view` is vim on many machines.
        `folder` is where the command will be run, if that is another project, in which uv has to be told where the
        checkout is.
        """
        if self.checkout and self.by_uv:
            project = f"--project {shlex.quote(os.path.relpath(self.checkout, folder))} " if folder else ""
            return f"uv run {project}{name}"
        return f"agentgym {name}" if ours else name

    def install(self, requirement: str, *, exact: bool = False) -> str:
        """Return the command line that installs a package, with or without an extra.

        Args:
            requirement: A requirement such as `agentgym-envs[pyserini]` or `mcp>=2`.
            exact: Whether to remove packages of other extras; supported in a checkout only.
        """
        ours = _OURS.fullmatch(requirement)
        if not (ours and self.checkout and self.by_uv):
            return f"{'uv pip' if self.by_uv else 'pip'} install {shlex.quote(requirement)}"
        package, extra = ours.groups()
        named = f" --extra {extra}" if extra else ""
        return f"uv sync{named}" if exact else f"uv sync --inexact --package {package}{named}"


def found(source: Path, installer: str | None) -> Installation:
    """Return the installation whose package is in the folder `source`, made by `installer` (pip, uv)."""
    root = next(iter(source.parents[3:]), source)
    from_checkout = (root / "uv.lock").is_file() and source == root / "packages/agentgym-envs/src/agentgym_envs"
    return Installation(root if from_checkout else None, by_uv=(installer or "").strip() == "uv")


@cache
def here() -> Installation:
    """Return the running installation."""
    try:
        installer = distribution("agentgym-envs").read_text("INSTALLER")
    except PackageNotFoundError:
        installer = None
    return found(Path(__file__).resolve().parents[1], installer)


def command(name: str, *, ours: bool = True, folder: Path | None = None) -> str:
    """Return the command line for a command such as `view`; see `Installation.command`."""
    return here().command(name, ours=ours, folder=folder)


def package_version(package: str) -> str:
    """Return a package's name and installed version, which commands print for `--version`."""
    return f"{package} {version(package)}"


def install(requirement: str, *, exact: bool = False) -> str:
    """Return the command line that installs a package; see `Installation.install`."""
    return here().install(requirement, exact=exact)
