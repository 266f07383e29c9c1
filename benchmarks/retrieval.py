"""How fast the retrievers index, load and search, and what memory and disk they take.

    uv run python benchmarks/retrieval.py --out retrieval.json
    uv run python benchmarks/retrieval.py --passages 1000000 --out million.json

Without `--passages` the almanac is searched, else a made-up corpus of that many passages: words drawn as often as
Zipf's law says, 60 to a passage. Each backend runs in fresh processes. Memory is anonymous plus mapped files, which
the system takes back when it needs them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_envs.retrieval import Passage

BACKENDS = ("bm25", "pyserini")
_WORDS, _LENGTH = 200_000, 60


@dataclass(frozen=True, slots=True)
class Cost:
    """What was measured of one backend on one corpus; memory and disk in MB."""

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


def made_up(count: int) -> Iterator[Passage]:
    """Passages of invented words; the same ones each time."""
    rng = np.random.default_rng(0)
    words = np.array([_word(number) for number in range(_WORDS)])
    for begin in range(0, count, 1_000):
        for number, row in enumerate(_draw(rng, (min(1_000, count - begin), _LENGTH)), begin):
            yield Passage(str(number), " ".join(words[row[:2]]), " ".join(words[row]))


def _word(number: int) -> str:
    """Another word for each number, without an ending that a stemmer would take off."""
    letters = "bdfgkmprtvz"
    word = ""
    while number or not word:
        number, digit = divmod(number, len(letters))
        word += letters[digit] + "ao"[digit % 2]
    return word + "k"


def _draw(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Numbers of words: the n-th comes about 1/n as often as the first."""
    return (np.exp(rng.random(shape) * np.log(_WORDS + 1)) - 1).astype(np.int64)


def queries(corpus: Path, count: int) -> list[str]:
    """Five words of one passage each, from the first passages of the corpus."""
    rng = np.random.default_rng(1)
    with corpus.open(encoding="utf-8") as file:
        texts = [json.loads(line)["contents"].split() for _, line in zip(range(5_000), file, strict=False)]
    picked = [texts[index] for index in rng.integers(len(texts), size=count)]
    return [" ".join(rng.choice(words, size=5)) for words in picked]


def index(corpus: Path, out: Path, backend: str, threads: int) -> dict[str, float]:
    """Make an index; runs in a process of its own."""
    from agentgym_envs.retrieval.indexing import make_index

    began = time.perf_counter()
    count = make_index(corpus, out, backend=backend, threads=threads, told=lambda doing, read: None)  # type: ignore[arg-type]
    seconds = time.perf_counter() - began
    peaks = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    disk = sum(file.stat().st_size for file in out.rglob("*") if file.is_file()) / 2**20
    return {"passages": count, "index_seconds": seconds, "index_memory": max(peaks), "disk": disk}


def search(spec: str, asked: Sequence[str], seconds: float) -> dict[str, float]:
    """Load an index and search it; runs in a process of its own."""
    from agentgym_envs.retrieval import open_retriever

    before = memory(os.getpid())
    began = time.perf_counter()
    retriever = open_retriever(spec)
    retriever.search(asked[:1], 3)
    loaded = time.perf_counter() - began
    rates = {
        "one_caller": rate(lambda part: retriever.search(part, 3), asked, 1, 1, seconds),
        "sixteen_callers": rate(lambda part: retriever.search(part, 3), asked, 16, 1, seconds),
        "batches": rate(lambda part: retriever.search(part, 3), asked, 1, 64, seconds),
    }
    own, worker = memory(os.getpid()), workers(os.getpid())
    retriever.close()
    sizes = {"anonymous": own[0] - before[0], "mapped": own[1] - before[1]}
    return {"load_seconds": loaded, **rates, **sizes, "worker_anonymous": worker[0], "worker_mapped": worker[1]}


def rate(call: Callable[[Sequence[str]], Any], asked: Sequence[str], callers: int, size: int, seconds: float) -> float:
    """Queries a second of `callers` threads, each with `size` queries a call, for about `seconds`."""
    end = time.perf_counter() + seconds

    def work(caller: int) -> int:
        done = 0
        while time.perf_counter() < end:
            at = (caller * 997 + done) % (len(asked) - size)
            call(asked[at : at + size])
            done += size
        return done

    began = time.perf_counter()
    with ThreadPoolExecutor(callers) as threads:
        done = sum(threads.map(work, range(callers)))
    return done / (time.perf_counter() - began)


def memory(pid: int) -> tuple[float, float]:
    """A process's anonymous memory and the mapped files it holds in memory, in MB."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    anonymous, mapped = (int(status[name].split()[0]) / 1024 for name in ("RssAnon", "RssFile"))
    return anonymous, mapped


def workers(pid: int) -> tuple[float, float]:
    """The same of all children of a process together."""
    pids = Path(f"/proc/{pid}/task").glob("*/children")
    sizes = [memory(int(child)) for listed in pids for child in listed.read_text().split()]
    return sum(size[0] for size in sizes), sum(size[1] for size in sizes)


def measure(corpus: Path, backend: str, place: Path, seconds: float, threads: int) -> Cost:
    """Index and search with one backend, each in a fresh process."""
    out = place / backend
    figures: dict[str, Any] = {"backend": backend}
    jobs = (
        (index, (corpus, out, backend, threads)),
        (search, (f"{backend}:{out}", queries(corpus, 4_000), seconds)),
    )
    for job, arguments in jobs:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            figures |= process.submit(job, *arguments).result()
    return Cost(**figures)


def write(passages: Iterator[Passage], path: Path) -> Path:
    """A corpus file of `passages`."""
    with path.open("w", encoding="utf-8") as file:
        for passage in passages:
            file.write(json.dumps({"id": passage.id, "contents": passage.contents}) + "\n")
    return path


def main() -> None:
    """Measure all backends, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--passages", type=int, help="search a made-up corpus of this size; else the almanac")
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--seconds", type=float, default=5.0, help="time per rate")
    parser.add_argument("--threads", type=int, default=1, help="Lucene's threads while indexing")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    asked = parser.parse_args()
    costs = compare(asked.backends, asked.passages, asked.seconds, asked.threads)
    show(costs)
    if asked.out is not None:
        asked.out.write_text(json.dumps([asdict(cost) for cost in costs], indent=2) + "\n", encoding="utf-8")


def compare(backends: Sequence[str], passages: int | None, seconds: float, threads: int = 1) -> list[Cost]:
    """What each backend costs on the same corpus: the almanac, or a made-up one of so many passages."""
    with tempfile.TemporaryDirectory() as place:
        corpus = write(corpus_of(passages), Path(place) / "corpus.jsonl")
        return [measure(corpus, backend, Path(place), seconds, threads) for backend in backends]


def show(costs: Sequence[Cost]) -> None:
    """Print a table with a column for each backend."""
    for name in Cost.__dataclass_fields__:
        print(f"{name:<18}" + "".join(f"{_shown(getattr(cost, name)):>14}" for cost in costs))


def corpus_of(count: int | None) -> Iterator[Passage]:
    """The almanac, or a made-up corpus of `count` passages."""
    if count is not None:
        return made_up(count)
    from agentgym_envs.worlds.searchqa.almanac import passages

    return iter(passages())


def _shown(value: float | str) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value


if __name__ == "__main__":
    main()
