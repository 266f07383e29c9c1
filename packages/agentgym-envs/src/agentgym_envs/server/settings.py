"""What a server offers and what it allows, as frozen dataclasses; `ServeSettings` is `serve`'s command line as well.

Only the standard library is imported here: `--help` reads this module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `build_app` needs to know."""

    world: tuple[str, ...] = ()
    """MODULE:ID of a world of yours, served beside the registered ones; give it again for each."""
    option: tuple[str, ...] = ()
    """WORLD:KEY=VALUE, an option that all worlds of that kind are made with here, also one that no client may set:
    searchqa:retriever=pyserini:runs/index. Give it again for each."""
    workers: int = 0
    """Processes that play the sessions; with 0 they are played in the server's own."""
    max_sessions: int = 1_024
    """Sessions at a time; one more is answered 429."""
    lease: float = 600.0
    """Seconds without a call after which a session is closed."""
    deadline: float = 120.0
    """Seconds that a call may take; then its world is replaced and the answer is 504."""
    max_body: int = 16 * 1024 * 1024
    """Bytes of a request; more are answered 413."""
    max_action: int = 65_536
    """Characters of an action; more are answered 422."""
    max_batch: int = 4_096
    """Calls in a batch, and queries in a request to /retrieve; more are answered 422."""

    def __post_init__(self) -> None:
        """Raises ValueError for numbers that make no server."""
        for name in ("max_sessions", "max_body", "max_action", "max_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{_flag(name)} is at least 1, not {getattr(self, name)}.")
        for name in ("lease", "deadline"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{_flag(name)} is a number of seconds above 0, not {getattr(self, name):g}.")
        if self.workers < 0:
            raise ValueError(f"--workers is 0 or more, not {self.workers}.")


@dataclass(frozen=True, kw_only=True)
class ServeSettings(Settings):
    """Serve all installed worlds over HTTP: API under /v1, its description at /openapi.json, /healthz and /metrics."""

    host: str = "127.0.0.1"
    """Address to listen on. Any but this machine's own needs --token-file."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    token_file: Path | None = None
    """File with the tokens, one a line, of which every request has to bring one."""
    retriever: str | None = None
    """Adds Search-R1's POST /retrieve over bm25, bm25:CORPUS, pyserini:INDEX or http://HOST:PORT."""
    grace: float = 10.0
    """Seconds that calls on their way get to end in after Ctrl-C or SIGTERM."""

    def __post_init__(self) -> None:
        """Raises ValueError as `Settings` does, and for a port that can't be."""
        Settings.__post_init__(self)
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"There is no port {self.port}; choose one from 1 to 65535, or 0 for a free one.")
        if not 0 <= self.grace < math.inf:
            raise ValueError(f"--grace is a number of seconds, not {self.grace:g}.")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
