"""Opens retrievers by spec. Within a process, equal specs share one retriever."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode, urlsplit

from agentgym_envs.retrieval.passages import Hit, Retriever
from agentgym_envs.util.extras import brought_by

if TYPE_CHECKING:
    from agentgym_envs.retrieval.passages import Passage

KINDS = "bm25, bm25:CORPUS, pyserini:INDEX and http://HOST:PORT"
_PYSERINI_OPTIONS = ("documents", "encoder", "heap", "threads")


def open_retriever(spec: str) -> Retriever:
    """Open the retriever that `spec` describes.

    Close it when done: closing the last handle of a shared retriever releases its resources. A handle that is garbage
    collected counts as closed.

    - `bm25`: the almanac, which comes with this package, searched in this process.
    - `bm25:CORPUS`: a corpus file (see `read_corpus`; its index is cached in the user's cache) or an index folder.
    - `pyserini:INDEX`: a Pyserini index folder or the name of a prebuilt index, searched by Lucene in a process of its
      own. Options after a `?`, joined by `&`: `encoder=NAME` for dense and learned-sparse indexes, `documents=INDEX`
      for the index with a dense index's passages, `threads=4`, `heap=1g` (Java's memory).
    - `http://HOST:PORT` or `https://...`: a server with Search-R1's `/retrieve`.

    Raises:
        ValueError: if the spec has none of these forms, or names something that doesn't exist.
        DependencyNotInstalled: if a package or Java is missing; the message has the install command.
    """
    return _Lease(_shared(spec))


def check_spec(spec: str) -> str:
    """Return `spec` with absolute paths: another working directory doesn't change what that means.

    Raises:
        ValueError, DependencyNotInstalled: those of `open_retriever(spec)` that are detected without opening anything.
    """
    return _plan(spec).key


@dataclass(slots=True)
class _Shared:
    key: str
    retriever: Retriever
    holders: int = 0


_lock = RLock()
_open: dict[str, _Shared] = {}


def _after_fork() -> None:
    # Another thread may have held it during the fork.
    global _lock
    _lock = RLock()


os.register_at_fork(after_in_child=_after_fork)


def _shared(spec: str) -> _Shared:
    plan = _plan(spec)
    with _lock:
        shared = _open.get(plan.key)
        if shared is None:
            shared = _Shared(plan.key, plan.open())
        shared.holders += 1
        _open[plan.key] = shared  # again: a lease may be garbage collected at any line
    _close_collected()
    return shared


def _release(shared: _Shared) -> None:
    with _lock:
        shared.holders -= 1
        if not shared.holders:
            _open.pop(shared.key, None)
            shared.retriever.close()


_collected: deque[_Shared] = deque()


def _on_collected(shared: _Shared) -> None:
    """Release a garbage-collected lease. Runs at arbitrary points of the program, so it must not block."""
    _collected.append(shared)
    _close_collected()


def _close_collected() -> None:
    """Release collected leases, unless another thread holds the lock: that thread calls this after its release."""
    while _collected and _lock.acquire(blocking=False):
        try:
            if _collected:
                _release(_collected.popleft())
        finally:
            _lock.release()


class _Lease:
    """One handle to a shared retriever."""

    def __init__(self, shared: _Shared) -> None:
        self._shared: _Shared | None = shared
        self._finalizer = weakref.finalize(self, _on_collected, shared)
        self._finalizer.atexit = False  # process exit frees everything anyway

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        shared = self._shared
        if shared is None:
            raise ValueError("This retriever is closed; open it again with open_retriever(spec).")
        return shared.retriever.search(queries, k)

    def close(self) -> None:
        """Release this handle. Idempotent."""
        self._shared = None
        if detached := self._finalizer.detach():  # only one of several threads gets it
            _, _, (shared,), _ = detached
            _release(shared)
            _close_collected()


@dataclass(frozen=True, slots=True)
class _Plan:
    """How to open a spec."""

    key: str
    """Equal for specs that mean the same retriever: paths in it are absolute."""
    open: Callable[[], Retriever]


def _plan(spec: str) -> _Plan:
    """Validate the syntax and paths of `spec`, and return how to open it."""
    kind, colon, rest = spec.partition(":")
    if kind in ("http", "https"):
        return _http(spec)
    plans: dict[str, Callable[[str], _Plan]] = {"bm25": _bm25, "pyserini": _pyserini}
    if kind not in plans or (colon and not rest.strip()) or (kind == "pyserini" and not rest):
        raise ValueError(f"There is no retriever {spec!r}; there are {KINDS}.")
    return plans[kind](rest)


def _http(url: str) -> _Plan:
    with brought_by("searchqa"):
        from agentgym_envs.retrieval.http import HttpRetriever

    if not _is_address(url):
        raise ValueError(f"{url!r} is not an address of a retrieval server; write it as http://HOST:PORT.")
    return _Plan(url, partial(HttpRetriever, url))


def _is_address(url: str) -> bool:
    if not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname and parts.hostname.encode("idna")) and parts.port != 0
    except ValueError:
        return False


def _bm25(corpus: str) -> _Plan:
    path = Path(corpus).expanduser().resolve()
    if corpus and not path.exists():
        raise ValueError(f"There is no corpus {corpus}; bm25:CORPUS takes a file of passages or an index folder.")
    if not corpus:
        return _Plan("bm25", partial(_open_bm25, None))
    return _Plan(f"bm25:{path}", partial(_open_bm25, path))


def _open_bm25(path: Path | None) -> Retriever:
    with brought_by("searchqa"):
        from agentgym_envs.retrieval.bm25 import Bm25Retriever, open_cached

        if path is not None and path.is_dir():
            return Bm25Retriever(path)
        return open_cached(*_source(path))


def _source(path: Path | None) -> tuple[str, Callable[[], Iterable[Passage]]]:
    """Return a cache key that identifies the corpus or the almanac, and a function that reads its passages."""
    if path is None:
        # Imported by name: the almanac belongs to an environment, and this package does not depend on environments.
        almanac = import_module("agentgym_envs.worlds.searchqa.almanac")
        return f"almanac {almanac.fingerprint()}", almanac.passages
    from agentgym_envs.retrieval.corpus import read_corpus

    state = path.stat()
    return f"{path} {state.st_size} {state.st_mtime_ns}", lambda: read_corpus(path)


def _pyserini(text: str) -> _Plan:
    from agentgym_envs.retrieval.lucene import LuceneRetriever, located

    index, _, query = text.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(options.keys() - set(_PYSERINI_OPTIONS)):
        known = ", ".join(_PYSERINI_OPTIONS)
        raise ValueError(f"pyserini:INDEX has no option {', '.join(unknown)}; its options are {known}.")
    threads = options.pop("threads", "4")
    if not threads.isascii() or not threads.isdigit() or int(threads) < 1:
        raise ValueError(f"threads={threads} is not a positive integer.")
    index = located(index)
    if options.get("documents"):
        options["documents"] = located(options["documents"])
    key = f"pyserini:{index}?{urlencode(sorted({**options, 'threads': int(threads)}.items()))}"
    return _Plan(key, partial(LuceneRetriever, index, threads=int(threads), **options))
