"""Speed, memory and disk space of the retrieval backends: indexing, loading and searching.

    uv run python benchmarks/retrieval.py --out retrieval.json
    uv run python benchmarks/retrieval.py --passages 1000000 --out million.json

The corpus is the almanac or, with `--passages`, a synthetic corpus of passages of 60 words drawn by Zipf's law. Each
backend has processes of its own. Memory is anonymous and mapped; the system reclaims mapped memory when needed.
"""

from __future__ import annotations

import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_envs.retrieval import Passage, Retriever
from harness import arguments, isolated, memory_status, process_tree, show, write_json

BACKENDS = ("bm25", "pyserini")
_VOCABULARY, _PASSAGE_WORDS = 200_000, 60
_QUERIES = 4_000


@dataclass(frozen=True, slots=True)
class Cost:
    """Measurements of a backend; memory and disk space in MB, rates in queries per second."""

    backend: str
    passages: int
    index_seconds: float
    index_memory: float
    disk: float
    load_seconds: float
    anonymous: float
    mapped: float
    worker_anonymous: float
    worker_mapped: float
    one_caller: float
    sixteen_callers: float
    batches: float


# Corpus and queries.


def synthetic_passages(count: int) -> Iterator[Passage]:
    """Return passages of synthetic words, the same each time."""
    rng = np.random.default_rng(0)
    words = np.array([_word(number) for number in range(_VOCABULARY)])
    for begin in range(0, count, 1_000):
        for number, row in enumerate(_draw_words(rng, (min(1_000, count - begin), _PASSAGE_WORDS)), begin):
            yield Passage(str(number), " ".join(words[row[:2]]), " ".join(words[row]))


def _word(number: int) -> str:
    """Return a different word for each number, without a suffix that a stemmer would remove."""
    letters = "bdfgkmprtvz"
    word = ""
    while number or not word:
        number, digit = divmod(number, len(letters))
        word += letters[digit] + "ao"[digit % 2]
    return word + "k"


def _draw_words(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Draw word numbers: word n is about 1/n as frequent as the first."""
    return (np.exp(rng.random(shape) * np.log(_VOCABULARY + 1)) - 1).astype(np.int64)


def write_corpus(passages: int | None, path: Path) -> None:
    """Write the almanac, or a synthetic corpus of this many passages, to a file."""
    from agentgym_envs.worlds.searchqa.almanac import passages as almanac

    with path.open("w", encoding="utf-8") as file:
        for passage in almanac() if passages is None else synthetic_passages(passages):
            file.write(json.dumps({"id": passage.id, "contents": passage.contents}) + "\n")


def draw_queries(corpus: Path) -> list[str]:
    """Return queries of five words from one of the first passages of the corpus."""
    rng = np.random.default_rng(1)
    with corpus.open(encoding="utf-8") as file:
        texts = [json.loads(line)["contents"].split() for _, line in zip(range(5_000), file, strict=False)]
    drawn = [texts[index] for index in rng.integers(len(texts), size=_QUERIES)]
    return [" ".join(rng.choice(words, size=5)) for words in drawn]


# Measurements, each in a process of its own.


def measure_indexing(corpus: Path, out: Path, backend: Any, threads: int) -> dict[str, float]:
    """Create an index."""
    from agentgym_envs.retrieval.indexing import make_index

    began = time.perf_counter()
    count = make_index(corpus, out, backend=backend, threads=threads, on_progress=lambda phase, read: None)
    seconds = time.perf_counter() - began
    peaks = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    disk = sum(file.stat().st_size for file in out.rglob("*") if file.is_file()) / 2**20
    return {"passages": count, "index_seconds": seconds, "index_memory": max(peaks), "disk": disk}


def measure_search(spec: str, queries: Sequence[str], seconds: float) -> dict[str, float]:
    """Load an index and search it."""
    from agentgym_envs.retrieval import open_retriever

    anonymous, mapped = memory_mb(os.getpid())
    began = time.perf_counter()
    retriever = open_retriever(spec)
    retriever.search(queries[:1], 3)
    found = {"load_seconds": time.perf_counter() - began}
    for name, callers, batch in (("one_caller", 1, 1), ("sixteen_callers", 16, 1), ("batches", 1, 64)):
        found[name] = search_rate(retriever, queries, callers, batch, seconds)
    own, *workers = (memory_mb(process.pid) for process in process_tree())
    retriever.close()
    found |= {"anonymous": own[0] - anonymous, "mapped": own[1] - mapped}
    return found | {"worker_anonymous": sum(w[0] for w in workers), "worker_mapped": sum(w[1] for w in workers)}


def search_rate(retriever: Retriever, queries: Sequence[str], callers: int, batch: int, seconds: float) -> float:
    """Return the queries per second of concurrent callers with `batch` queries per call, over about `seconds`."""
    began = time.perf_counter()

    def search(caller: int) -> int:
        done = 0
        while time.perf_counter() < began + seconds:
            at = (caller * 997 + done) % (len(queries) - batch)
            retriever.search(queries[at : at + batch], 3)
            done += batch
        return done

    with ThreadPoolExecutor(callers) as threads:
        done = sum(threads.map(search, range(callers)))
    return done / (time.perf_counter() - began)


def memory_mb(pid: int) -> tuple[float, float]:
    """Return the anonymous and the mapped memory of a process in MB."""
    status = memory_status(pid)
    return status["RssAnon"] / 2**20, status["RssFile"] / 2**20


def measure(corpus: Path, backend: str, folder: Path, seconds: float, threads: int) -> Cost:
    """Measure a backend on a corpus."""
    out = folder / backend
    indexing = isolated(measure_indexing, corpus, out, backend, threads)
    searching = isolated(measure_search, f"{backend}:{out}", draw_queries(corpus), seconds)
    found: dict[str, Any] = indexing | searching
    return Cost(backend, **found)


def table(costs: Sequence[Cost]) -> list[dict[str, str]]:
    """Return a row for each measurement, with a column for each backend."""
    names = [field.name for field in fields(Cost)[1:]]
    return [{"": name} | {cost.backend: f"{round(getattr(cost, name), 1):,}" for cost in costs} for name in names]


def main() -> None:
    """Measure all backends."""
    parser = arguments(__doc__, "out", "seconds", seconds=5.0)
    parser.add_argument("--passages", type=int, help="search a synthetic corpus of this size, instead of the almanac")
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS, help="which")
    parser.add_argument("--threads", type=int, default=1, help="Lucene's threads for indexing")
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = folder / "corpus.jsonl"
        write_corpus(settings.passages, corpus)
        measured = (settings.seconds, settings.threads)
        costs = [measure(corpus, backend, folder, *measured) for backend in settings.backends]
    show("Retrieval backends", table(costs))
    write_json(settings.out, costs)


if __name__ == "__main__":
    main()
