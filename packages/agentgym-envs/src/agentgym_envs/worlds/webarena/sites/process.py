"""Starts the server process of the sites and copies the databases for each episode.

The environment's process makes the copies and reads them to judge an episode; the server only looks them up by token.
The server can therefore crash and restart at any time without losing state.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from dataclasses import dataclass, field
from pathlib import Path

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.sites.directory import PLACES, databases
from agentgym_envs.worlds.webarena.sites.store import database

_PACKAGE = "agentgym_envs.worlds.webarena.sites"
_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Copy:
    """The databases of one episode."""

    token: str
    """Value of the header `X-Episode`."""
    folder: Path
    pid: int = field(default_factory=os.getpid)
    """Id of the process that owns the copy."""

    def files(self) -> dict[str, Path]:
        """Return the path of the database file by site key."""
        return {key: self.folder / f"{place.database}.sqlite" for key, place in PLACES.items() if place.database}

    def discard(self) -> None:
        """Delete the copy. Safe to call twice; does nothing in a forked child, since the parent owns the files."""
        if self.pid == os.getpid():
            shutil.rmtree(self.folder, ignore_errors=True)


class SitesServer:
    """Serves the sites at `127.0.0.1:port` until it is stopped or garbage-collected, or the owner process ends."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="agentgym-sites-"))
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._tidy = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.users = 0

    @property
    def port(self) -> int:
        """The port, which stays the same across restarts."""
        return self._socket.getsockname()[1]

    @property
    def pid(self) -> int | None:
        """The server's process id, or None while it isn't running."""
        return None if self._process is None else self._process.pid

    def ensure(self) -> None:
        """Start the server, or restart it if it died.

        Raises:
            EnvFault: If it doesn't start.
        """
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            for name in databases(writable=True) + databases(writable=False):
                database(name)
            self._end()
            fd = self._socket.fileno()
            if fd < 0:
                raise EnvFault("The embedded sites are gone: they were stopped, or this process was forked since.")
            self._process = subprocess.Popen(
                [sys.executable, "-m", _PACKAGE, "--fd", str(fd), "--episodes", self._folder],
                stdin=subprocess.PIPE,  # closes when the owner ends, which ends the server
                pass_fds=[fd],
                start_new_session=True,  # Ctrl-C is for the owner, which may want to finish its step
            )
            self._wait_until_it_answers(self._process)

    def open(self) -> Copy:
        """Copy fresh databases for one episode under a new token. Takes 1-2 ms."""
        token = secrets.token_hex(16)
        folder = self._folder / token
        folder.mkdir()
        for name in databases(writable=True):
            shutil.copyfile(database(name), folder / f"{name}.sqlite")
        for name in databases(writable=False):
            (folder / f"{name}.sqlite").symlink_to(database(name))
        return Copy(token, folder)

    def stop(self) -> None:
        """End the server and delete all copies. Safe to call twice."""
        with self._lock:
            self._end()
            self._socket.close()
            self._tidy()

    def disown(self) -> None:
        """Release the parent's resources in a forked child without affecting the parent."""
        self._lock = threading.Lock()  # another thread of the parent may have held the lock
        self._tidy.detach()
        self._socket.close()
        if self._process is not None:
            self._process.returncode = 0  # not a child of this process, so it can't be waited for
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()
            if process.returncode is None:
                process.kill()
                process.wait()

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the first response, which means that the sites are loaded; a connection alone doesn't."""
        deadline = time.monotonic() + _PATIENCE
        with socket.create_connection(("127.0.0.1", self.port), timeout=0.5) as probe:
            probe.sendall(b"GET / HTTP/1.0\r\nHost: probe\r\n\r\n")
            while time.monotonic() < deadline and process.poll() is None:
                try:
                    if probe.recv(1):
                        return
                    break
                except TimeoutError:
                    continue
                except OSError:  # the server died while it responded
                    break
        code = process.poll()
        self._end()
        raise EnvFault(f"The embedded sites did not come up ({'no answer' if code is None else f'exit code {code}'}).")


_servers: list[SitesServer] = []
_lock = threading.RLock()


def enter() -> SitesServer:
    """Return this process's server, starting it on first use. Pair each call with `leave`.

    Raises:
        EnvFault: If it doesn't start.
    """
    with _lock:
        if not _servers:
            _servers.append(SitesServer())
        (server,) = _servers
        server.users += 1
    try:
        server.ensure()
    except BaseException:
        leave(server)
        raise
    return server


def leave(server: SitesServer) -> None:
    """Release the server; the last release stops it."""
    with _lock:
        server.users -= 1
        if server.users == 0:
            server.stop()
            _servers[:] = [other for other in _servers if other is not server]


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    for server in _servers:
        server.disown()
    _servers.clear()


os.register_at_fork(after_in_child=_after_fork)
