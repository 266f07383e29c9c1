"""The sites from the outside: the server process, and a copy of the databases for each episode.

The process that plays makes the copies and reads them when it judges; the server only finds them by their token. So
the server may die and come back at any time without anything being lost.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from agentgym_envs.sites.directory import PLACES, databases
from agentgym_envs.sites.store import database
from agentgym_envs.text_env import EnvFault

_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Copy:
    """The databases of one episode."""

    token: str
    """Value of the header `X-Episode`."""
    folder: Path

    def files(self) -> dict[str, Path]:
        """The database file by key of site."""
        return {key: self.folder / f"{place.database}.sqlite" for key, place in PLACES.items() if place.database}


class SitesServer:
    """Serves the sites at `127.0.0.1:port` until it is stopped or the process that made it ends."""

    def __init__(self) -> None:
        self._room = Path(tempfile.mkdtemp(prefix="agentgym-sites-"))
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The same for its whole life, also after a restart."""
        return self._socket.getsockname()[1]

    @property
    def pid(self) -> int | None:
        """The process id of the server, while there is one."""
        return None if self._process is None else self._process.pid

    def ensure(self) -> None:
        """Start the server, or start it again when it died.

        Raises:
            EnvFault: when it doesn't come up.
        """
        if self._process is not None and self._process.poll() is None:
            return
        for name in databases(writable=True) + databases(writable=False):
            database(name)
        self._leave()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentgym_envs.sites", "--fd", str(self._socket.fileno()), "--episodes", self._room],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[self._socket.fileno()],
            start_new_session=True,  # Ctrl-C is for the owner, which may want to play its step to the end
        )
        self._wait_until_it_answers(self._process)

    def open(self) -> Copy:
        """Fresh databases for one episode, under a new token."""
        token = secrets.token_hex(16)
        folder = self._room / token
        folder.mkdir()
        for name in databases(writable=True):
            shutil.copyfile(database(name), folder / f"{name}.sqlite")
        for name in databases(writable=False):
            (folder / f"{name}.sqlite").symlink_to(database(name))
        return Copy(token, folder)

    def discard(self, copy: Copy) -> None:
        """Delete an episode's databases."""
        shutil.rmtree(copy.folder, ignore_errors=True)

    def stop(self) -> None:
        """End the server and delete all copies. May be called twice."""
        self._leave()
        self._socket.close()
        shutil.rmtree(self._room, ignore_errors=True)

    def _leave(self) -> None:
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stderr):
                if pipe is not None:
                    pipe.close()
            self._process.kill()
            self._process.wait()
            self._process = None

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        """The socket takes connections from the start; the first answer means that the sites are loaded."""
        deadline = time.monotonic() + _PATIENCE
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
            probe.sendall(b"GET / HTTP/1.0\r\nHost: probe\r\n\r\n")
            while time.monotonic() < deadline:
                try:
                    if probe.recv(1):
                        return
                except TimeoutError:
                    if process.poll() is not None:
                        break
        said = b"" if process.stderr is None or process.poll() is None else process.stderr.read()
        self._leave()
        raise EnvFault(f"The embedded sites did not come up: {said.decode(errors='replace')[-2000:] or 'no answer'}")
