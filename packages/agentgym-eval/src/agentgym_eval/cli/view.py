"""The command `view`.

Exit codes: 0 ended by Ctrl-C, 2 wrong usage. Whatever is heavy is imported after the flags are read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from agentgym_eval.cli.examples import EXAMPLES, SYNONYMS
from agentgym_eval.cli.flags import read_flags
from agentgym_eval.util.errors import UsageError

_USAGE = 2


@dataclass(frozen=True, kw_only=True)
class ViewSettings:
    """Look at runs and episodes in a browser: replay, filter, compare; live while they are played and trained.

    Nothing leaves the machine, and nothing is written into DIR but games that are played by hand and saved.
    """

    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="dir", metavar="DIR")]
    """Folder with runs of train, evaluate and collect, at any depth, or one file of episodes."""
    host: str = "127.0.0.1"
    """Address to listen on. Any but this machine's own lets others read all that lies below DIR."""
    port: int = 0
    """Port to listen on; a free one with 0."""
    export: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Write the pages as files into this folder, which open from disk without a server, and end."""
    most: int = 2000
    """Most episodes that are exported: each becomes a page."""
    open: bool = True
    """Open the browser."""

    def __post_init__(self) -> None:
        if self.most < 1:
            raise UsageError(f"--most is at least 1, not {self.most}.")
        if not 0 <= self.port <= 65535:
            raise UsageError(f"--port is from 0 to 65535, not {self.port}.")
        if not self.directory.exists():
            from agentgym_envs.util.installation import command

            raise UsageError(
                f"{self.directory} doesn't exist; name a folder with runs, such as: {command('view')} runs"
            )


def view(argv: Sequence[str] | None = None) -> int:
    """`view`: see `ViewSettings`. Returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--version" in arguments:
        from agentgym_envs.util.installation import package_version

        sys.stdout.write(f"{package_version('agentgym-eval')}\n")
        return 0
    try:
        examples, synonyms = EXAMPLES["view"], SYNONYMS["view"]
        return _view(read_flags("view", ViewSettings, arguments, examples=examples, synonyms=synonyms))
    except UsageError as error:
        sys.stderr.write(f"view: {error}\n")
        return _USAGE


def _view(settings: ViewSettings) -> int:
    if settings.export is not None:
        return _export(settings.directory, settings.export, settings.most)
    from agentgym_envs.core.registry import look_here

    from agentgym_eval.viewer.server.serve import serve

    look_here()
    return serve(settings.directory, settings.host, settings.port, open_browser=settings.open, environment=os.environ)


def _export(directory: Path, out: Path, most: int) -> int:
    from agentgym_eval.viewer.server.export import export
    from agentgym_eval.viewer.server.serve import open_index

    with open_index(directory) as index:
        files = export(index, out, most)
    sys.stderr.write(f"{files:,} files are in {out}; open {out / 'index.html'} in a browser.\n")
    return 0
