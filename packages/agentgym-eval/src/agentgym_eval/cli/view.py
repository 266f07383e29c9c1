"""The command `view`.

Exit codes: 0 exported, or the server was stopped by Ctrl-C; 2 wrong usage; 130, 143 and 138: the export was ended by
Ctrl-C, SIGTERM or SIGUSR1. Heavy modules are imported after the flags are parsed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Optional

from agentgym_envs.cli.flags import read_flags
from agentgym_envs.util.flag_markers import arg, positional

from agentgym_eval.cli.examples import EXAMPLES, SYNONYMS
from agentgym_eval.util.errors import UsageError, did_you_mean
from agentgym_eval.util.stopping import Interruption

_USAGE = 2
_RUNS = Path("runs")
"""Where the commands of the documentation write their runs."""


@dataclass(frozen=True, kw_only=True)
class ViewSettings:
    """View runs and episodes in a browser: replay, filter and compare them, live while they are running.

    All data stays on this machine. Nothing is written into DIR except what you do on the pages: saving episodes that
    you played, annotating episodes, naming and tagging runs, and moving them to DIR/.trash.
    """

    directory: Annotated[Path, positional(), arg(name="dir", metavar="DIR")] = _RUNS
    """Folder that contains runs of train, evaluate or collect at any depth, or one file of episodes. The folder runs
    need not exist yet."""
    host: str = "127.0.0.1"
    """Address to listen on. Any address other than this machine's own lets others read everything below DIR."""
    port: int = 0
    """Port to listen on; 0 picks a free one."""
    read_only: bool = False
    """Change nothing in DIR: episodes can't be annotated, runs can't be named, tagged or moved to the trash, and
    nothing is played by hand."""
    export: Annotated[Optional[Path], arg(metavar="PATH")] = None  # noqa: UP045  # tyro checks `|` with typeguard
    """Write the pages as static files into this folder and exit. They open from disk without a server."""
    most: int = 2000
    """Maximum number of episodes to export; each becomes a page."""
    open: bool = True
    """Open the page in a browser."""

    def check(self) -> None:
        """Raise `UsageError` if a number is out of range or there is no such file or folder."""
        if self.most < 1:
            raise UsageError(f"--most must be at least 1, not {self.most}.")
        if not 0 <= self.port <= 65535:
            raise UsageError(f"--port must be between 0 and 65535, not {self.port}.")
        needed = self.export is not None or self.directory != _RUNS
        if needed and not self.directory.exists():
            near = did_you_mean(str(self.directory), list(map(str, self.directory.parent.glob("*"))))
            raise UsageError(
                f"There is no file or folder {self.directory}.{near} Name a folder with runs of train, evaluate or "
                f"collect, or a file of episodes; the default is the folder {_RUNS}."
            )


def view(argv: Sequence[str] | None = None) -> int:
    """Run the command `view`, see `ViewSettings`. Returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--version" in arguments:
        from agentgym_envs.util.installation import package_version

        sys.stdout.write(f"{package_version('agentgym-eval')}\n")
        return 0
    try:
        examples, synonyms = EXAMPLES["view"], SYNONYMS["view"]
        settings = read_flags("view", ViewSettings, arguments, examples=examples, synonyms=synonyms)
        settings.check()
        return _view(settings)
    except UsageError as error:
        sys.stderr.write(f"view: {error}\n")
        return _USAGE


def _view(settings: ViewSettings) -> int:
    if settings.export is not None:
        return _export(settings.directory, settings.export, settings.most)
    from agentgym_envs.core.registration import look_here

    from agentgym_eval.viewer.server.serve import serve

    look_here()
    return serve(
        settings.directory,
        settings.host,
        settings.port,
        open_browser=settings.open,
        environment=os.environ,
        read_only=settings.read_only,
    )


def _export(directory: Path, out: Path, most: int) -> int:
    from agentgym_eval.viewer.server.export import export
    from agentgym_eval.viewer.server.serve import open_index

    with Interruption() as interruption:
        try:
            with open_index(directory) as index:
                files = export(index, out, most)
        except KeyboardInterrupt:
            sys.stderr.write(f"{interruption.word}. Nothing was written to {out}.\n")
            return interruption.exit_code
    sys.stderr.write(f"Wrote {files:,} files to {out}; open {out / 'index.html'} in a browser.\n")
    return 0
