"""Lucene through Pyserini in a worker process: the client side of `lucene_worker.py`.

A process that has started Java hangs when it forks, so Java never starts in the main process. The worker is started by
the first search, serves any number of threads, and exits with its owner. After a fork the child starts its own worker.
This module only locates Java; all calls into Java are in the worker.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, TimeoutError
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import IO, Any

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.retrieval.corpus import passage_of
from agentgym_envs.retrieval.passages import MAX_TOPK, Hit, Passage, sendable
from agentgym_envs.util.installation import install
from agentgym_envs.util.java import find_java, java_home

JAVA = 21
"""The Java version that Pyserini's classes are compiled for."""
_MODULE = "agentgym_envs.retrieval.lucene_worker"
_TIMEOUT = 300.0  # seconds per request; a dense index on a busy CPU takes tens of seconds
# Pyserini can't be imported without an OpenAI key, even for local search. A key that is set stays in place.
_SHELL = 'JAVA_HOME=$1; OPENAI_API_KEY=${OPENAI_API_KEY:-none}; export JAVA_HOME OPENAI_API_KEY; shift; exec "$@"'


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
        self._worker: Worker | None = None
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

    def _running(self) -> Worker:
        with self._lock:
            worker = self._worker
            if worker is None or worker.ended or worker.process.poll() is not None:
                if worker is not None:
                    worker.end()
                worker = self._worker = Worker(self._settings)
            return worker


_retrievers: weakref.WeakSet[LuceneRetriever] = weakref.WeakSet()


def _after_fork() -> None:
    for retriever in _retrievers:
        retriever.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class Worker:
    """A worker process and its pending requests."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open while the process runs
        self.process = self._start(settings)
        assert isinstance(self.process.stdin, RawIOBase) and isinstance(self.process.stdout, RawIOBase)
        self._requests, self._answers = self.process.stdin, BufferedReader(self.process.stdout)
        self._sending = threading.Lock()
        self._pending: dict[int, Future[dict[str, Any]]] = {0: Future()}  # 0: the worker's ready message
        self._ready = self._pending[0]
        self._asked = 0
        self.ended = False
        threading.Thread(target=self._listen, daemon=True, name="lucene-answers").start()

    def ask(self, request: dict[str, Any], timeout: float | None) -> dict[str, Any]:
        """Send a request once the worker is ready, and return its answer.

        Args:
            request: The request without an id.
            timeout: Seconds to wait for the answer; None for no limit.

        Raises:
            EnvFault: if the worker ended, failed or timed out.
            ValueError: if the requested index or resource doesn't exist.
        """
        self._ready.result()  # without a timeout: the worker may be downloading an index
        future: Future[dict[str, Any]] = Future()
        with self._sending:
            self._asked += 1
            self._pending[self._asked] = future
            try:
                self._write({**request, "id": self._asked})
            except (OSError, ValueError) as error:  # the process ended, or another thread has closed the pipe
                raise self._fault() from error
        if self.ended and not future.done():  # it ended before the future was registered
            raise self._fault()
        try:
            return future.result(timeout)
        except TimeoutError as error:
            self.process.kill()
            raise EnvFault(f"Lucene did not answer within {timeout:g} s and was killed.") from error

    def wait(self) -> None:
        """Wait until the worker reports that it is ready or done. Raises the same errors as `ask`."""
        self._ready.result()

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self.let_go()

    def let_go(self) -> None:
        """Close this process's ends of the pipes."""
        self._requests.close()
        self._log.close()

    def _start(self, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
        home = java_home(find_java(JAVA))
        arguments = json.dumps({**settings, "jar": str(anserini_jar()), "owner": os.getpid()})
        command = ["/bin/sh", "-c", _SHELL, "sh", str(home), sys.executable, "-P", "-m", _MODULE, arguments]
        # -P keeps modules of the working directory from being imported. Unbuffered pipes leave no partial request that
        # a forked child could send again. A new session leaves Ctrl-C to the owner.
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._log, bufsize=0, start_new_session=True)

    def _write(self, request: dict[str, Any]) -> None:
        rest = memoryview(json.dumps(request).encode() + b"\n")
        while rest:  # a signal can interrupt a write
            rest = rest[self._requests.write(rest) or 0 :]

    def _listen(self) -> None:
        refused: str | None = None
        try:
            with self._answers as answers:
                for line in answers:
                    if not line.endswith(b"\n"):  # it ended in the middle of an answer
                        break
                    answer = json.loads(line)
                    refused = answer.get("refused", refused)
                    if refused is None:
                        self._resolve(answer)
        except (ValueError, KeyError, AttributeError):
            self.process.kill()  # its output doesn't follow the protocol
        finally:
            self.ended = True
            error = ValueError(refused) if refused is not None else self._fault()
            for future in list(self._pending.values()):
                future.set_exception(error)

    def _resolve(self, answer: dict[str, Any]) -> None:
        future = self._pending.pop(answer.get("id", 0))
        if "fault" in answer:
            future.set_exception(EnvFault(f"Lucene can't answer: {answer['fault']}"))
        else:
            future.set_result(answer)

    def _fault(self) -> EnvFault:
        try:
            status = self.process.wait(5)
        except subprocess.TimeoutExpired:
            status = None
        how = f"by signal {-status}" if status is not None and status < 0 else f"with status {status}"
        return EnvFault(f"The process that runs Lucene ended {how}. Its last output: {self._last_output()}")

    def _last_output(self) -> str:
        try:
            size = os.fstat(self._log.fileno()).st_size
            return os.pread(self._log.fileno(), 2000, max(0, size - 2000)).decode(errors="replace").strip() or "none"
        except (OSError, ValueError):  # closed, possibly by another thread
            return "none"


def index_folder(source: Path, folder: Path, *, passages: int, threads: int, heap: str = "2g") -> None:
    """Index the `.jsonl` files in `source`, which contain `passages` objects `{"id", "contents"}`, with Lucene.

    Raises:
        ValueError: if Lucene didn't index all of them.
        EnvFault: if the process ended.
        DependencyNotInstalled: if Pyserini or Java is missing.
    """
    settings = {"task": "index", "input": str(source), "index": str(folder), "passages": passages}
    worker = Worker({**settings, "threads": threads, "heap": heap})
    try:
        worker.wait()
    finally:
        worker.end()


def anserini_jar() -> Path:
    """Return the jar with the classes of Lucene and Anserini, which Pyserini ships.

    Raises:
        DependencyNotInstalled: if Pyserini is missing.
    """
    found = importlib.util.find_spec("pyserini")
    jars = Path(found.origin).parent.glob("resources/jars/anserini-*-fatjar.jar") if found and found.origin else ()
    jar = next(iter(sorted(jars)), None)
    if jar is None:
        raise DependencyNotInstalled(f"Lucene comes with Pyserini. Install it: {install('agentgym-envs[pyserini]')}")
    return jar


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
