"""BM25 in this process, without Java: the library bm25s over Lucene's terms, with Lucene's formula and order.

k1 and b are Pyserini's defaults. One thing differs from Lucene, which keeps the length of a long passage in a byte and
so scores with a rounded one; bm25s takes the true length. An index is a folder, mapped into memory when opened: it is
there at once, forks share it, and nothing has to be freed. Of equal scores the passage whose id sorts first comes
first, as in Anserini's searcher.
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
_MARK, _RANK = "bm25.json", "rank.npy"
_FORMAT = 1
_STRETCH = 256


class Bm25Retriever:
    """Searches an index folder made by `build_index`. Reads only: shared by threads and forks, nothing to close."""

    def __init__(self, folder: Path) -> None:
        """Open the index.

        Raises:
            ValueError: when the folder holds no such index, or one of another version.
        """
        import bm25s

        check_index(folder)
        self._passages = PassageFile(folder)
        self._scorer = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        self._rank = np.load(folder / _RANK, mmap_mode="r")
        self._here = local()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        return [self._search(query, k) for query in queries]

    def close(self) -> None:
        """Nothing to free: the mapped files go with the last reference."""

    def _search(self, query: str, k: int) -> list[Hit]:
        ids = self._scorer.get_tokens_ids(self._analyzer().terms(query))
        if not ids or k < 1:
            return []
        scores = self._scorer.get_scores_from_ids(ids)
        return [Hit(self._passages[index], float(scores[index])) for index in best(scores, self._rank, k).tolist()]

    def _analyzer(self) -> Analyzer:
        analyzer: Analyzer | None = getattr(self._here, "analyzer", None)
        if analyzer is None:
            analyzer = self._here.analyzer = Analyzer()
        return analyzer


def best(scores: NDArray[np.float32], rank: NDArray[np.int32], k: int) -> NDArray[np.intp]:
    """Where the `k` highest positive scores stand, highest first; of equal ones that of the lowest `rank`."""
    # Of the peaks of stretches the k-th highest is no higher than the k-th highest score, and far quicker to find.
    peaks = np.maximum.reduceat(scores, np.arange(0, len(scores), _STRETCH))
    floor = np.partition(peaks, len(peaks) - k)[len(peaks) - k] if k < len(peaks) else 0
    at = np.flatnonzero(scores >= floor) if floor > 0 else np.flatnonzero(scores)
    return at[np.lexsort((rank[at], -scores[at]))[:k]]


def is_index(folder: Path) -> bool:
    """Whether `folder` holds an index of `build_index`, of any version."""
    return (folder / _MARK).is_file()


def check_index(folder: Path) -> None:
    """Raises ValueError when `folder` holds no index that this version reads."""
    mark = folder / _MARK
    if not is_index(folder):
        raise ValueError(f"{folder} holds no bm25 index; `searchqa-index CORPUS {folder} --backend bm25` makes one.")
    written = json.loads(mark.read_text(encoding="utf-8"))["format"]
    if written != _FORMAT:
        raise ValueError(f"{folder} is an index of format {written}, this version reads {_FORMAT}; make it anew.")


def build_index(passages: Iterable[Passage], folder: Path) -> int:
    """Index `passages` into the empty folder `folder`; returns how many there are.

    Memory grows with the terms of the corpus: some 30 bytes for each of them while building.

    Raises:
        CorpusError: for a corpus without words.
    """
    import bm25s

    terms = _CorpusTerms(write_passages(folder, passages))
    if not terms.vocab:
        raise CorpusError("The corpus has no words in it; nothing could be found there.")
    scorer = bm25s.BM25(k1=K1, b=B, method="lucene")
    scorer.index(terms, create_empty_token=False, show_progress=False)
    scorer.save(folder, show_progress=False)
    np.save(folder / _RANK, terms.rank())
    # last, since it says that the rest is there
    (folder / _MARK).write_text(json.dumps({"format": _FORMAT, "passages": len(terms)}), encoding="utf-8")
    return len(terms)


def cached_index(key: str, passages: Callable[[], Iterable[Passage]]) -> Path:
    """The folder of the index called `key` in the user's cache, built there first where it is missing.

    Two processes may build at once; the second finds the first one's and takes that.
    """
    digest = hashlib.blake2b(f"{_maker()} {key}".encode(), digest_size=12).hexdigest()
    home = cache_folder("bm25")
    folder = home / digest
    if not is_index(folder):
        fresh = Path(tempfile.mkdtemp(prefix=".building-", dir=home))
        try:
            build_index(passages(), fresh)
            _settle(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return folder


def open_cached(key: str, passages: Callable[[], Iterable[Passage]]) -> Bm25Retriever:
    """Search `cached_index(key, passages)`; where that is damaged, it is deleted and built anew."""
    folder = cached_index(key, passages)
    try:
        return Bm25Retriever(folder)
    except (ValueError, LookupError, OSError, EOFError):
        shutil.rmtree(folder, ignore_errors=True)
    return Bm25Retriever(cached_index(key, passages))


@cache
def _maker() -> str:
    """What makes an index: with other code or another bm25s a kept one may hold other terms or scores."""
    sources = (Path(__file__).with_name(name).read_bytes() for name in ("analysis.py", "bm25.py", "passage_file.py"))
    code = hashlib.blake2b(b"".join(sources), digest_size=12).hexdigest()
    return f"{code} {version('bm25s')} {version('pystemmer')} {version('regex')}"


def _settle(fresh: Path, folder: Path) -> None:
    try:
        fresh.rename(folder)
    except OSError:
        if is_index(folder):  # somebody else was quicker
            return
        shutil.rmtree(folder)  # a deletion that was cut off left it
        fresh.rename(folder)


class _CorpusTerms:
    """The terms of all passages as one array of numbers: what `bm25s.BM25.index` walks through, as often as it likes.

    bm25s asks for `ids`, passages that are lists of term numbers, and `vocab`, the number of each term.
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
        """The place of each passage among all, by id, as Lucene orders texts: byte by byte."""
        rank = np.empty(len(self), dtype=np.int32)
        rank[sorted(range(len(self)), key=self._names.__getitem__)] = np.arange(len(self), dtype=np.int32)
        return rank

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[list[int]]:
        return (self._all[begin:end].tolist() for begin, end in pairwise(self._ends))
