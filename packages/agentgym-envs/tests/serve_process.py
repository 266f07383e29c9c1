"""`serve` in a process of its own, as a user starts it."""

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
class Serve:
    """A server that was started."""

    process: subprocess.Popen[str]
    line: str
    """What it printed when it was ready."""

    @property
    def url(self) -> str:
        """`http://HOST:PORT`."""
        return self.line.split()[2].rstrip(":")

    def family(self) -> list[psutil.Process]:
        """Its process and all that it started."""
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def errors(self) -> list[str]:
        """The lines of its standard error, once it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read().splitlines()


@contextmanager
def serve_process(*arguments: object) -> Iterator[Serve]:
    """A server on a free port, which can find the worlds beside this file; it is gone afterwards."""
    command = [sys.executable, "-c", _START, str(Path(__file__).parent), "--port", "0", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Serve(process, process.stdout.readline())
        finally:
            process.kill()
