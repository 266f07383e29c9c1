"""Runs `serve` in its own process, as users start it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

_START = """
import sys
from agentgym_envs.cli.main import serve
sys.path.insert(0, sys.argv.pop(1))
sys.exit(serve())
"""


@dataclass(frozen=True)
class ServerProcess:
    """A running server."""

    process: subprocess.Popen[str]
    ready_line: str
    """The line that it printed when it was ready."""

    @property
    def url(self) -> str:
        """`http://HOST:PORT`."""
        return self.ready_line.split()[2].rstrip(":")

    def processes(self) -> list[psutil.Process]:
        """Return its process and all descendants."""
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def errors(self) -> list[str]:
        """Return the lines of its standard error, once it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read().splitlines()


@contextmanager
def serve_process(*arguments: object) -> Iterator[ServerProcess]:
    """Start a server on a free port that can import the modules of this folder, and kill it afterwards."""
    command = [sys.executable, "-c", _START, str(Path(__file__).parent), "--port", "0", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield ServerProcess(process, process.stdout.readline())
        finally:
            process.kill()
