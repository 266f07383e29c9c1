"""Lucene through Pyserini, in a process of its own: `lucene_worker.py` runs there, this is its owner's side.

A process that has started Java can't be forked any more without hanging, so Java never starts in ours. The worker is
started at the first search, answers any number of threads, and ends with its owner. After a fork the child starts one
of its own. Knows nothing of Java but where it lies.
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
"""The Java that Pyserini's classes are made for."""
_MODULE = "agentgym_envs.retrieval.lucene_worker"
_PATIENCE = 300.0  # seconds for an answer; a dense index on a busy CPU takes tens
# Pyserini won't load without a key for OpenAI, even to search on this machine; a real one is kept.
_SHELL = 'JAVA_HOME=$1; OPENAI_API_KEY=${OPENAI_API_KEY:-none}; export JAVA_HOME OPENAI_API_KEY; shift; exec "$@"'


class LuceneRetriever:
    """Searches an index of Pyserini's: a folder on disk, or a prebuilt one by name, which is downloaded when new."""

    def __init__(
        self, index: str, *, encoder: str = "", documents: str = "", threads: int = 4, heap: str = "1g"
    ) -> None:
        """Look for everything that a search needs, and start nothing yet.

        Args:
            index: A folder, or the name of a prebuilt index such as `wikipedia-dpr-100w`.
            encoder: The model that encodes queries, for dense and learned-sparse indexes; BM25 without one.
            documents: The BM25 index that holds the passages of a dense one; prebuilt ones know theirs.
            threads: How many queries of a batch Lucene searches at once.
            heap: The bound on Java's own memory; the index itself is mapped, outside of it.

        Raises:
            ValueError: for a folder that isn't there, holds no index or needs an encoder; for a heap that is no size.
            DependencyNotInstalled: when Pyserini or Java is missing.
        """
        if not re.fullmatch(r"\d+[kmgKMG]", heap):
            raise ValueError(f"heap={heap} is no size; write it as 512m or 2g.")
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
            EnvFault: when the worker can't answer, ended, or is silent; where it ended, the next search starts another.
            ValueError: when there is no index of that name, or what it needs is missing.
        """
        if not queries or k < 1:
            return [[] for _ in queries]
        asked = [sendable(query) for query in queries]
        answer = self._running().ask({"queries": asked, "k": min(k, MAX_TOPK)}, _PATIENCE)
        return [[Hit(_passage(raw, name), score) for name, score, raw in row] for row in answer["found"]]

    def close(self) -> None:
        """End the worker. A search after that would start another."""
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
        """In a forked child: leave the parent's worker alone."""
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
    """A running worker and what it still has to answer."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process runs
        self.process = self._start(settings)
        assert isinstance(self.process.stdin, RawIOBase) and isinstance(self.process.stdout, RawIOBase)
        self._requests, self._answers = self.process.stdin, BufferedReader(self.process.stdout)
        self._sending = threading.Lock()
        self._waiting: dict[int, Future[dict[str, Any]]] = {0: Future()}  # 0: the word that it is ready
        self._ready = self._waiting[0]
        self._asked = 0
        self.ended = False
        threading.Thread(target=self._listen, daemon=True, name="lucene-answers").start()

    def ask(self, request: dict[str, Any], patience: float | None) -> dict[str, Any]:
        """Send a request once the worker is ready, and wait for its answer, at most `patience` seconds.

        Raises:
            EnvFault: when there is no answer.
            ValueError: when what was asked for isn't there.
        """
        self._ready.result()  # as long as a download takes
        future: Future[dict[str, Any]] = Future()
        with self._sending:
            self._asked += 1
            self._waiting[self._asked] = future
            try:
                self._write({**request, "id": self._asked})
            except (OSError, ValueError) as error:  # nobody reads any more, or another thread noticed and closed it
                raise self._fault() from error
        if self.ended and not future.done():  # it ended before the future was there to be told
            raise self._fault()
        try:
            return future.result(patience)
        except TimeoutError as error:
            self.process.kill()
            raise EnvFault(f"Lucene gave no answer for {patience:g} s and was ended.") from error

    def wait(self) -> None:
        """Wait until the worker says that it is ready or done. Raises as `ask` does."""
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
        told = json.dumps({**settings, "jar": str(anserini_jar()), "owner": os.getpid()})
        command = ["/bin/sh", "-c", _SHELL, "sh", str(home), sys.executable, "-P", "-m", _MODULE, told]
        # -P, since what lies in the user's folder is nothing to import. Unbuffered, so that a fork has nothing of a
        # request left to send again; a session of its own, so that Ctrl-C is for the owner to handle.
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._log, bufsize=0, start_new_session=True)

    def _write(self, request: dict[str, Any]) -> None:
        rest = memoryview(json.dumps(request).encode() + b"\n")
        while rest:  # a signal may cut a write short
            rest = rest[self._requests.write(rest) or 0 :]

    def _listen(self) -> None:
        refused: str | None = None
        try:
            with self._answers as answers:
                for line in answers:
                    if not line.endswith(b"\n"):  # it died in the middle of an answer
                        break
                    answer = json.loads(line)
                    refused = answer.get("refused", refused)
                    if refused is None:
                        self._hand_out(answer)
        except (ValueError, KeyError, AttributeError):
            self.process.kill()  # what it says makes no sense
        finally:
            self.ended = True
            error = ValueError(refused) if refused is not None else self._fault()
            for future in list(self._waiting.values()):
                future.set_exception(error)

    def _hand_out(self, answer: dict[str, Any]) -> None:
        future = self._waiting.pop(answer.get("id", 0))
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
        return EnvFault(f"The process that runs Lucene ended {how}. Its last words: {self._last_words()}")

    def _last_words(self) -> str:
        try:
            size = os.fstat(self._log.fileno()).st_size
            return os.pread(self._log.fileno(), 2000, max(0, size - 2000)).decode(errors="replace").strip() or "none"
        except (OSError, ValueError):  # closed, perhaps just now by another thread
            return "none"


def index_folder(source: Path, folder: Path, *, passages: int, threads: int, heap: str = "2g") -> None:
    """Let Lucene index the `.jsonl` files in `source`, which hold `passages` objects `{"id", "contents"}`.

    Raises:
        ValueError: when it didn't take every one.
        EnvFault: when the process ended.
        DependencyNotInstalled: when Pyserini or Java is missing.
    """
    asked = {"task": "index", "input": str(source), "index": str(folder), "passages": passages}
    worker = Worker({**asked, "threads": threads, "heap": heap})
    try:
        worker.wait()
    finally:
        worker.end()


def anserini_jar() -> Path:
    """Lucene and Anserini's classes, which Pyserini ships.

    Raises:
        DependencyNotInstalled: without Pyserini.
    """
    found = importlib.util.find_spec("pyserini")
    jars = Path(found.origin).parent.glob("resources/jars/anserini-*-fatjar.jar") if found and found.origin else ()
    jar = next(iter(sorted(jars)), None)
    if jar is None:
        raise DependencyNotInstalled(f"Lucene comes with Pyserini. Install it: {install('agentgym-envs[pyserini]')}")
    return jar


def located(index: str) -> str:
    """An index's folder, made absolute, or the name of a prebuilt one as it is.

    Raises:
        ValueError: for a folder that isn't there or holds no index.
    """
    folder = Path(index).expanduser()
    if folder.is_dir():
        if not any(folder.glob("segments_*")) and not _is_faiss(folder):
            raise ValueError(f"{index} holds no index of Pyserini's; `searchqa-index CORPUS {index}` makes one.")
        return str(folder.resolve())
    if folder.exists() or index.startswith(("~", ".", "/")) or not index:
        raise ValueError(f"There is no index folder {index}; pyserini:INDEX takes a folder or a prebuilt index's name.")
    return index


def _is_faiss(folder: Path) -> bool:
    return (folder / "docid").is_file()


def _passage(raw: str, name: str) -> Passage:
    """The passage that was stored as `raw`, mostly JSON of our forms; the index's own name for it is its id."""
    try:
        return passage_of({**json.loads(raw), "id": name})
    except (ValueError, TypeError):
        return Passage(name, "", raw)
