"""In-process BM25 without Java: the library bm25s over Lucene's terms, with Lucene's formula and ordering.

k1 and b are Pyserini's defaults. One difference remains: Lucene stores passage lengths in one byte, which rounds long
ones, while bm25s uses the exact length. An index is a folder that is memory-mapped when opened: opening is instant,
forks share the pages, and nothing has to be freed. Ties are broken by passage id, as in Anserini's searcher.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from threading import local
from typing import TYPE_CHECKING

import numpy as np

from agentgym_envs.retrieval.analysis import Analyzer
from agentgym_envs.retrieval.corpus import CorpusError
from agentgym_envs.retrieval.passage_file import PassageFile, write_passages
from agentgym_envs.retrieval.passages import Hit, Passage
from agentgym_envs.util.files import cache_folder

if TYPE_CHECKING:
    from numpy.typing import NDArray

K1, B = 0.9, 0.4
_MARKER, _RANK = "bm25.json", "rank.npy"
_FORMAT = 1
_BLOCK_SIZE = 256


class Bm25Retriever:
    """A BM25 retriever over an index folder of `build_index`. Read-only, so threads and forks can share it."""

    def __init__(self, folder: Path) -> None:
        """Open the index.

        Raises:
            ValueError: if the folder contains no such index, or one of another format version.
        """
        import bm25s

        check_index(folder)
        self._passages = PassageFile(folder)
        self._scorer = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        self._rank = np.load(folder / _RANK, mmap_mode="r")
        self._thread_local = local()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        return [self._search(query, k) for query in queries]

    def close(self) -> None:
        """Do nothing: the mapped files are released with the last reference."""

    def _search(self, query: str, k: int) -> list[Hit]:
        ids = self._scorer.get_tokens_ids(self._analyzer().terms(query))
        if not ids or k < 1:
            return []
        scores = self._scorer.get_scores_from_ids(ids)
        return [Hit(self._passages[index], float(scores[index])) for index in best(scores, self._rank, k).tolist()]

    def _analyzer(self) -> Analyzer:
        analyzer: Analyzer | None = getattr(self._thread_local, "analyzer", None)
        if analyzer is None:
            analyzer = self._thread_local.analyzer = Analyzer()
        return analyzer


def best(scores: NDArray[np.float32], rank: NDArray[np.int32], k: int) -> NDArray[np.intp]:
    """Return the indices of the `k` highest positive scores, highest first; ties are broken by the lower `rank`."""
    # The k-th highest block maximum is a lower bound of the k-th highest score, and far cheaper to compute.
    maxima = np.maximum.reduceat(scores, np.arange(0, len(scores), _BLOCK_SIZE))
    threshold = np.partition(maxima, len(maxima) - k)[len(maxima) - k] if k < len(maxima) else 0
    candidates = np.flatnonzero(scores >= threshold) if threshold > 0 else np.flatnonzero(scores)
    return candidates[np.lexsort((rank[candidates], -scores[candidates]))[:k]]


def is_index(folder: Path) -> bool:
    """Whether `folder` contains an index of `build_index`, of any format version."""
    return (folder / _MARKER).is_file()


def check_index(folder: Path) -> None:
    """Raise ValueError unless `folder` contains an index that this version reads."""
    marker = folder / _MARKER
    if not is_index(folder):
        raise ValueError(f"{folder} holds no bm25 index; `searchqa-index CORPUS {folder} --backend bm25` makes one.")
    written = json.loads(marker.read_text(encoding="utf-8"))["format"]
    if written != _FORMAT:
        raise ValueError(f"{folder} is an index of format {written}, this version reads {_FORMAT}; build it again.")


def build_index(passages: Iterable[Passage], folder: Path) -> int:
    """Index `passages` into the empty folder `folder` and return their number.

    Building takes about 30 bytes of memory per term of the corpus.

    Raises:
        CorpusError: if the corpus contains no words.
    """
    import bm25s

    terms = _CorpusTerms(write_passages(folder, passages))
    if not terms.vocab:
        raise CorpusError("The corpus has no words in it, so no search could find anything.")
    scorer = bm25s.BM25(k1=K1, b=B, method="lucene")
    scorer.index(terms, create_empty_token=False, show_progress=False)
    scorer.save(folder, show_progress=False)
    np.save(folder / _RANK, terms.rank())
    # Written last: it marks the index as complete.
    (folder / _MARKER).write_text(json.dumps({"format": _FORMAT, "passages": len(terms)}), encoding="utf-8")
    return len(terms)


def cached_index(key: str, passages: Callable[[], Iterable[Passage]]) -> Path:
    """Return the folder of the index `key` in the user's cache; build it if it is missing.

    Two processes may build concurrently; the slower one uses the index of the faster one.
    """
    digest = hashlib.blake2b(f"{_builder_version()} {key}".encode(), digest_size=12).hexdigest()
    cache_root = cache_folder("bm25")
    folder = cache_root / digest
    if not is_index(folder):
        building = Path(tempfile.mkdtemp(prefix=".building-", dir=cache_root))
        try:
            build_index(passages(), building)
            _move_into_cache(building, folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return folder


def open_cached(key: str, passages: Callable[[], Iterable[Passage]]) -> Bm25Retriever:
    """Open `cached_index(key, passages)`; a damaged index is deleted and rebuilt."""
    folder = cached_index(key, passages)
    try:
        return Bm25Retriever(folder)
    except (ValueError, LookupError, OSError, EOFError):
        shutil.rmtree(folder, ignore_errors=True)
    return Bm25Retriever(cached_index(key, passages))


@cache
def _builder_version() -> str:
    """Identify the code that builds indexes: another version of it or of bm25s may yield other terms or scores."""
    sources = (Path(__file__).with_name(name).read_bytes() for name in ("analysis.py", "bm25.py", "passage_file.py"))
    code = hashlib.blake2b(b"".join(sources), digest_size=12).hexdigest()
    return f"{code} {version('bm25s')} {version('pystemmer')} {version('regex')}"


def _move_into_cache(building: Path, folder: Path) -> None:
    try:
        building.rename(folder)
    except OSError:
        if is_index(folder):  # another process was faster
            return
        shutil.rmtree(folder)  # the remains of an interrupted deletion
        building.rename(folder)


class _CorpusTerms:
    """The term ids of all passages in one array, as a re-iterable input for `bm25s.BM25.index`.

    bm25s reads `ids`, a list of term ids per passage, and `vocab`, the id of each term.
    """

    def __init__(self, passages: Iterable[Passage]) -> None:
        self.vocab: dict[str, int] = {}
        self._all, self._ends = array("i"), array("q", [0])
        self._names: list[bytes] = []
        analyzer, vocab = Analyzer(), self.vocab
        for passage in passages:
            self._names.append(passage.id.encode(errors="replace"))
            self._all.extend([vocab.setdefault(term, len(vocab)) for term in analyzer.terms(passage.contents)])
            self._ends.append(len(self._all))

    @property
    def ids(self) -> _CorpusTerms:
        return self

    def rank(self) -> NDArray[np.int32]:
        """Return the rank of each passage when sorted by id in Lucene's order, byte by byte."""
        rank = np.empty(len(self), dtype=np.int32)
        rank[sorted(range(len(self)), key=self._names.__getitem__)] = np.arange(len(self), dtype=np.int32)
        return rank

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[list[int]]:
        return (self._all[begin:end].tolist() for begin, end in pairwise(self._ends))
