"""Server settings as frozen dataclasses. `ServeSettings` also defines the command line of `serve`.

This module imports only the standard library, so that `--help` is fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `build_app`."""

    world: tuple[str, ...] = ()
    """MODULE:ID of a custom environment to serve in addition to the registered ones. May be repeated."""
    option: tuple[str, ...] = ()
    """WORLD:KEY=VALUE, a server-side option for all environments of that id, including options that clients may not
    set: searchqa:retriever=pyserini:runs/index. May be repeated."""
    workers: int = 0
    """Number of worker processes for the sessions; with 0, they run in the server's process."""
    max_sessions: int = 1_024
    """Maximum number of open sessions; creating another fails with 429."""
    lease: float = 600.0
    """Seconds without a call after which a session is closed."""
    deadline: float = 120.0
    """Time limit of a call in seconds; then its environment is replaced and the call fails with 504."""
    max_body: int = 16 * 1024 * 1024
    """Maximum size of a request body in bytes; larger ones fail with 413."""
    max_action: int = 65_536
    """Maximum length of an action in characters; longer ones fail with 422."""
    max_batch: int = 4_096
    """Maximum number of calls per batch, and of queries per /retrieve request; more fail with 422."""

    def __post_init__(self) -> None:
        """Raise ValueError for invalid numbers."""
        for name in ("max_sessions", "max_body", "max_action", "max_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{_flag(name)} must be at least 1, not {getattr(self, name)}.")
        for name in ("lease", "deadline"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{_flag(name)} must be a number of seconds above 0, not {getattr(self, name):g}.")
        if self.workers < 0:
            raise ValueError(f"--workers must be 0 or more, not {self.workers}.")


@dataclass(frozen=True, kw_only=True)
class ServeSettings(Settings):
    """Serve all installed environments over HTTP: API under /v1, described at /openapi.json; /healthz and /metrics."""

    host: str = "127.0.0.1"
    """Address to listen on. All but loopback addresses require --token-file."""
    port: int = 8000
    """Port to listen on; 0 chooses a free one."""
    token_file: Path | None = None
    """File with access tokens, one per line. Every request must then carry one of them."""
    retriever: str | None = None
    """Add Search-R1's POST /retrieve over bm25, bm25:CORPUS, pyserini:INDEX or http://HOST:PORT."""
    grace: float = 10.0
    """Seconds that pending calls have to finish after Ctrl-C or SIGTERM."""

    def __post_init__(self) -> None:
        """Raise ValueError for invalid numbers."""
        Settings.__post_init__(self)
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"There is no port {self.port}; choose one from 1 to 65535, or 0 for a free one.")
        if not 0 <= self.grace < math.inf:
            raise ValueError(f"--grace must be a number of seconds, not {self.grace:g}.")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
