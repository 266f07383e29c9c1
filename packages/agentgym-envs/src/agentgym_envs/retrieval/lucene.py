"""Lucene through Pyserini: a retriever over an index, and the construction of indexes.

All calls into Java are in a worker process (`lucene_process.py`), which the first search starts and which serves any
number of threads. After a fork the child starts its own worker.
"""

from __future__ import annotations

import json
import os
import re
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgym_envs.retrieval.corpus import passage_of
from agentgym_envs.retrieval.lucene_process import JAVA, LuceneProcess, anserini_jar
from agentgym_envs.retrieval.passages import MAX_TOPK, Hit, Passage, sendable
from agentgym_envs.util.java import find_java

_TIMEOUT = 300.0  # seconds per request; a dense index on a busy CPU takes tens of seconds


class LuceneRetriever:
    """A retriever over a Pyserini index: a folder, or the name of a prebuilt index, downloaded at first use."""

    def __init__(
        self, index: str, *, encoder: str = "", documents: str = "", threads: int = 4, heap: str = "1g"
    ) -> None:
        """Check that everything a search needs is available. Starts no process yet.

        Args:
            index: A folder, or the name of a prebuilt index such as `wikipedia-dpr-100w`.
            encoder: The model that encodes queries, for dense and learned-sparse indexes; BM25 without one.
            documents: The BM25 index with the passages of a dense index; not needed for prebuilt indexes.
            threads: How many queries of a batch Lucene searches in parallel.
            heap: The limit of Java's heap, such as `512m`; the index is memory-mapped outside of it.

        Raises:
            ValueError: if the folder doesn't exist, contains no index or needs an encoder; if `heap` is malformed.
            DependencyNotInstalled: if Pyserini or Java is missing.
        """
        if not re.fullmatch(r"\d+[kmgKMG]", heap):
            raise ValueError(f"heap={heap} is not a size; write it as 512m or 2g.")
        folder = located(index)
        if not encoder and _is_faiss(Path(folder)):
            raise ValueError(f"{index} is a FAISS index, which needs encoder=, the model that encodes its queries.")
        self._settings: dict[str, Any] = {
            "task": "search",
            "index": folder,
            "encoder": encoder,
            "documents": located(documents) if documents else "",
            "threads": threads,
            "heap": heap,
        }
        anserini_jar()
        find_java(JAVA)
        self._lock = threading.Lock()
        self._worker: LuceneProcess | None = None
        _retrievers.add(self)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `Retriever.search`.

        Raises:
            EnvFault: if the worker reports an error, timed out or ended; the next search starts a new worker.
            ValueError: if there is no index of that name, or something that it needs is missing.
        """
        if not queries or k < 1:
            return [[] for _ in queries]
        texts = [sendable(query) for query in queries]
        answer = self._running().ask({"queries": texts, "k": min(k, MAX_TOPK)}, _TIMEOUT)
        return [[Hit(_passage(raw, name), score) for name, score, raw in row] for row in answer["found"]]

    def close(self) -> None:
        """End the worker. A later search starts a new one."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()

    @property
    def worker_pid(self) -> int | None:
        """The process id of the running worker; None before the first search."""
        worker = self._worker
        return worker.process.pid if worker is not None else None

    def after_fork(self) -> None:
        """Drop the parent's worker in a forked child, without ending it."""
        self._lock = threading.Lock()
        if self._worker is not None:
            self._worker.let_go()
            self._worker = None

    def _running(self) -> LuceneProcess:
        with self._lock:
            worker = self._worker
            if worker is None or worker.ended or worker.process.poll() is not None:
                if worker is not None:
                    worker.end()
                worker = self._worker = LuceneProcess(self._settings)
            return worker


_retrievers: weakref.WeakSet[LuceneRetriever] = weakref.WeakSet()


def _after_fork() -> None:
    for retriever in _retrievers:
        retriever.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def index_folder(source: Path, folder: Path, *, passages: int, threads: int, heap: str = "2g") -> None:
    """Index the `.jsonl` files in `source`, which contain `passages` objects `{"id", "contents"}`, with Lucene.

    Raises:
        ValueError: if Lucene didn't index all of them.
        EnvFault: if the process ended.
        DependencyNotInstalled: if Pyserini or Java is missing.
    """
    settings = {"task": "index", "input": str(source), "index": str(folder), "passages": passages}
    worker = LuceneProcess({**settings, "threads": threads, "heap": heap})
    try:
        worker.wait()
    finally:
        worker.end()


def located(index: str) -> str:
    """Return the absolute path of an index folder, or the name of a prebuilt index unchanged.

    Raises:
        ValueError: if the folder doesn't exist or contains no index.
    """
    folder = Path(index).expanduser()
    if folder.is_dir():
        if not any(folder.glob("segments_*")) and not _is_faiss(folder):
            raise ValueError(f"{index} contains no Pyserini index; `searchqa-index CORPUS {index}` makes one.")
        return str(folder.resolve())
    if folder.exists() or index.startswith(("~", ".", "/")) or not index:
        raise ValueError(f"There is no index folder {index}; pyserini:INDEX takes a folder or a prebuilt index's name.")
    return index


def _is_faiss(folder: Path) -> bool:
    return (folder / "docid").is_file()


def _passage(raw: str, name: str) -> Passage:
    """Parse a stored passage, usually JSON in one of our forms; its id is the index's name for it."""
    try:
        return passage_of({**json.loads(raw), "id": name})
    except (ValueError, TypeError):
        return Passage(name, "", raw)
