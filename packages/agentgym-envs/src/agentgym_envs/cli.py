"""The commands `serve` and `searchqa-index`.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted. Whatever is heavy is imported after the flags are read, so
that `--help` answers at once.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

_FAILED, _USAGE, _INTERRUPTED = 1, 2, 130


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Let other processes search over HTTP: Search-R1's `POST /retrieve`, and `GET /healthz`."""

    retriever: str
    """What is searched: bm25, bm25:CORPUS, pyserini:INDEX or http://HOST:PORT."""
    host: str = "127.0.0.1"
    """The address to listen on. Any but this machine's own needs --trust-network."""
    port: int = 8000
    """The port to listen on; 0 takes a free one."""
    trust_network: bool = False
    """Let other machines search, whoever they are: nobody is asked for a password."""


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Index a corpus for the retrievers pyserini:OUT or bm25:OUT."""

    corpus: Path
    """JSONL ({"id", "contents"} or {"id", "title", "text"}) or DPR's TSV; also with .gz."""
    out: Path
    """The folder to make."""
    backend: Literal["pyserini", "bm25"] = "pyserini"
    """Which retriever is to search it."""
    threads: int = 1
    """How many threads Lucene indexes with."""
    overwrite: bool = False
    """Replace OUT where it is an index or empty."""


_Settings = TypeVar("_Settings", ServeSettings, IndexSettings)


def serve(argv: Sequence[str] | None = None) -> int:
    """`uv run serve`: see `ServeSettings`. Returns the exit code."""
    return _command("serve", ServeSettings, _serve, argv)


def searchqa_index(argv: Sequence[str] | None = None) -> int:
    """`uv run searchqa-index`: see `IndexSettings`. Returns the exit code."""
    return _command("searchqa-index", IndexSettings, _index, argv)


def _command(name: str, noun: type[_Settings], run: Callable[[_Settings], int], argv: Sequence[str] | None) -> int:
    from gymnasium.error import DependencyNotInstalled

    from agentgym_envs.text_env import EnvFault

    try:
        return run(_parsed(name, noun, list(sys.argv[1:] if argv is None else argv)))
    except (ValueError, FileExistsError) as error:
        return _tell(f"{name}: {error}", _USAGE)
    except (EnvFault, DependencyNotInstalled, OSError) as error:
        return _tell(f"{name}: {error}", _FAILED)
    except KeyboardInterrupt:
        return _tell(f"{name}: interrupted.", _INTERRUPTED)


def _parsed(name: str, noun: type[_Settings], arguments: list[str]) -> _Settings:
    from agentgym_envs.retrieval.extras import brought_by

    with brought_by("searchqa"):
        import tyro

    files = (tyro.conf.PositionalRequiredArgs,) if noun is IndexSettings else ()
    return tyro.cli(noun, prog=name, args=arguments, config=(tyro.conf.FlagCreatePairsOff, *files))


def _tell(sentence: str, code: int) -> int:
    sys.stderr.write(sentence + "\n")
    return code


def _serve(settings: ServeSettings) -> int:
    check_address(settings)
    from agentgym_envs.retrieval import open_retriever
    from agentgym_envs.retrieval.extras import brought_by

    with brought_by("serve"):
        import uvicorn

        from agentgym_envs.retrieval.server import retrieval_app

    with _listener(settings) as listener:
        retriever = open_retriever(settings.retriever)
        try:
            download = "; a prebuilt index is downloaded when it is new"
            prebuilt = settings.retriever.startswith("pyserini:")
            sys.stderr.write(f"Loading {settings.retriever}{download if prebuilt else ''}\n")
            retriever.search(["ready"], 1)  # what it stands on is loaded before the first client waits for it
            host, port = listener.getsockname()[:2]
            sys.stdout.write(f"Searching {settings.retriever} on http://{_bracketed(host)}:{port}\n")
            sys.stdout.flush()
            config = uvicorn.Config(retrieval_app(retriever), log_level="warning", timeout_graceful_shutdown=5)
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            return _tell("Stopped.", 0)  # which is how a server ends
        finally:
            retriever.close()
    return 0


def _listener(settings: ServeSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise OSError(f"port {settings.port} is in use; choose another with --port.") from error


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def check_address(settings: ServeSettings) -> None:
    """Raises ValueError where nothing can, or nothing should, listen as the settings say."""
    if not 0 <= settings.port <= 65_535:
        raise ValueError(f"There is no port {settings.port}; choose one from 1 to 65535, or 0 for a free one.")
    try:
        own = settings.host == "localhost" or ipaddress.ip_address(settings.host).is_loopback
    except ValueError as error:
        raise ValueError(f"{settings.host} is no IP address to listen on; take 127.0.0.1.") from error
    if not own and not settings.trust_network:
        raise ValueError(
            f"{settings.host} would let other machines search, whoever they are. Add --trust-network where that is "
            "meant; else listen on 127.0.0.1, and let others come through a tunnel (ssh -L)."
        )


def _index(settings: IndexSettings) -> int:
    if settings.threads < 1:
        raise ValueError(f"--threads {settings.threads} is no number of threads; give 1 or more.")
    from agentgym_envs.retrieval.extras import brought_by

    options: dict[str, Any] = {"backend": settings.backend, "threads": settings.threads}
    show = _Progress()
    try:
        with brought_by("searchqa"):
            from agentgym_envs.retrieval.indexing import make_index

            made = make_index(settings.corpus, settings.out, **options, overwrite=settings.overwrite, told=show)
    finally:
        show.end()
    sys.stdout.write(f"{settings.out} holds {made} passages; search it with {settings.backend}:{settings.out}\n")
    return 0


class _Progress:
    """One line on a terminal that is written over; elsewhere a line for each thing that is begun."""

    def __init__(self) -> None:
        self._doing = ""

    def __call__(self, doing: str, passages: int) -> None:
        """Show what is being done, and how many passages were read."""
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{doing}: {passages:,} passages\x1b[K")
        elif doing != self._doing:
            sys.stderr.write(f"{doing} passages ({passages:,} so far)\n")
        self._doing = doing
        sys.stderr.flush()

    def end(self) -> None:
        """Leave the line."""
        if self._doing and sys.stderr.isatty():
            sys.stderr.write("\n")
