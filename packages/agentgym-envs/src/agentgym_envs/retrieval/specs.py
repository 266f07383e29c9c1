"""Opens a retriever by its name, once per process: whoever names the same one shares it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock, RLock
from urllib.parse import parse_qsl, urlsplit

from agentgym_envs.retrieval.passages import Hit, Retriever

KINDS = "bm25, bm25:CORPUS, pyserini:INDEX and http://HOST:PORT"
_PYSERINI_OPTIONS = ("documents", "encoder", "heap", "threads")


def open_retriever(spec: str) -> Retriever:
    """The retriever that `spec` names; close it when done, and the last one closed frees what it stands on.

    - `bm25`: the almanac, which comes with this package, in this process.
    - `bm25:CORPUS`: a corpus file (see `read_corpus`; its index is kept in the user's cache) or the folder of an index.
    - `pyserini:INDEX`: a folder of Pyserini's or the name of a prebuilt index, searched by Lucene in a process of its
      own. Options after a `?`, joined by `&`: `encoder=NAME` for dense and learned-sparse indexes, `documents=INDEX`
      where the passages of a dense index lie, `threads=4`, `heap=1g` (Java's memory).
    - `http://HOST:PORT` or `https://...`: a server that speaks Search-R1's `/retrieve`.

    Raises:
        ValueError: for a spec that names none of these, or something that isn't there.
        DependencyNotInstalled: when a package or Java is missing; the message has the command that brings it.
    """
    return _Lease(_shared(spec))


def check_spec(spec: str) -> None:
    """Raises what `open_retriever(spec)` would where that shows without opening anything."""
    _plan(spec)


@dataclass(slots=True)
class _Shared:
    spec: str
    retriever: Retriever
    holders: int = 0


_lock = RLock()
_open: dict[str, _Shared] = {}


def _after_fork() -> None:
    # another thread may have held it while the process forked
    global _lock
    _lock = RLock()


os.register_at_fork(after_in_child=_after_fork)


def _shared(spec: str) -> _Shared:
    with _lock:
        if spec not in _open:
            _open[spec] = _Shared(spec, _plan(spec)())
        _open[spec].holders += 1
        return _open[spec]


class _Lease:
    """One holder's share of a retriever."""

    def __init__(self, shared: _Shared) -> None:
        self._shared: _Shared | None = shared
        self._closing = Lock()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        shared = self._shared
        if shared is None:
            raise ValueError("This retriever was closed; open it anew with open_retriever(spec).")
        return shared.retriever.search(queries, k)

    def close(self) -> None:
        """Give the share back."""
        with self._closing:
            shared, self._shared = self._shared, None
        if shared is None:
            return
        with _lock:
            shared.holders -= 1
            if not shared.holders:
                del _open[shared.spec]
                shared.retriever.close()


def _plan(spec: str) -> Callable[[], Retriever]:
    """How to open `spec`, once its wording and its paths have been found good."""
    kind, colon, rest = spec.partition(":")
    if kind in ("http", "https"):
        return _http(spec)
    plans: dict[str, Callable[[str], Callable[[], Retriever]]] = {"bm25": _bm25, "pyserini": _pyserini}
    if kind not in plans or (colon and not rest.strip()) or (kind == "pyserini" and not rest):
        raise ValueError(f"There is no retriever {spec!r}; there are {KINDS}.")
    return plans[kind](rest)


def _http(url: str) -> Callable[[], Retriever]:
    from agentgym_envs.retrieval.http import HttpRetriever

    parts = urlsplit(url)
    try:
        bad = not parts.hostname or parts.port == 0
    except ValueError:
        bad = True
    if bad:
        raise ValueError(f"{url!r} is no address of a retrieval server; write it as http://HOST:PORT.")
    return partial(HttpRetriever, url)


def _bm25(corpus: str) -> Callable[[], Retriever]:
    path = Path(corpus).expanduser().resolve()
    if corpus and not path.exists():
        raise ValueError(f"There is no corpus {corpus}; bm25:CORPUS takes a file of passages or an index folder.")
    return partial(_open_bm25, path if corpus else None)


def _open_bm25(path: Path | None) -> Retriever:
    from agentgym_envs.retrieval.bm25 import Bm25Retriever, cached_index
    from agentgym_envs.retrieval.corpus import read_corpus

    if path is None:
        from agentgym_envs import almanac

        return Bm25Retriever(cached_index(f"almanac {almanac.fingerprint()}", almanac.passages))
    if path.is_dir():
        return Bm25Retriever(path)
    state = path.stat()
    return Bm25Retriever(cached_index(f"{path} {state.st_size} {state.st_mtime_ns}", lambda: read_corpus(path)))


def _pyserini(text: str) -> Callable[[], Retriever]:
    from agentgym_envs.retrieval.lucene import LuceneRetriever

    index, _, query = text.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(options.keys() - set(_PYSERINI_OPTIONS)):
        known = ", ".join(_PYSERINI_OPTIONS)
        raise ValueError(f"pyserini:INDEX knows no option {', '.join(unknown)}; its options are {known}.")
    threads = options.pop("threads", "4")
    if not threads.isascii() or not threads.isdigit() or int(threads) < 1:
        raise ValueError(f"threads={threads} is no whole number from 1 on.")
    return partial(LuceneRetriever, index, threads=int(threads), **options)
