"""Tests of in-process BM25: the textbook's scores, Anserini's ordering, and an index shared by threads and forks."""

from __future__ import annotations

import json
import math
import multiprocessing
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import pytest
from agentgym_envs.retrieval import Passage, open_retriever
from agentgym_envs.retrieval.analysis import Analyzer
from agentgym_envs.retrieval.bm25 import K1, B, Bm25Retriever, best, build_index, cached_index
from agentgym_envs.retrieval.corpus import CorpusError
from hypothesis import given
from hypothesis import strategies as st
from small_corpus import ids, make_queries

ZOO = [
    Passage("10", "Otter", "The otter swims. An otter swims well."),
    Passage("9", "Heron", "The heron stands in the river and waits for fish."),
    Passage("2", "Pike", "A pike is a fish of the river."),
    Passage("11", "Perch", "A perch is a fish of the river."),
]


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory, passages: list[Passage]) -> Bm25Retriever:
    folder = tmp_path_factory.mktemp("bm25")
    assert build_index(passages, folder) == len(passages)
    return Bm25Retriever(folder)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Bm25Retriever:
    folder = tmp_path_factory.mktemp("zoo")
    build_index(ZOO, folder)
    return Bm25Retriever(folder)


def reference_scores(texts: dict[str, Counter[str]], query: str, k: int) -> list[tuple[str, float]]:
    """Return the best ids and scores of Robertson and Zaragoza's BM25 in Lucene's variant, one passage at a time."""
    mean = sum(text.total() for text in texts.values()) / len(texts)
    scores: dict[str, float] = {}
    for term in Analyzer().terms(query):
        document_frequency = sum(term in text for text in texts.values())
        weight = math.log(1 + (len(texts) - document_frequency + 0.5) / (document_frequency + 0.5))
        for name, text in texts.items():
            if count := text[term]:
                length = 1 - B + B * text.total() / mean
                scores[name] = scores.get(name, 0.0) + weight * count / (count + K1 * length)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]


def test_scores_match_the_textbook(tmp_path: Path, passages: list[Passage]) -> None:
    texts = {passage.id: Counter(Analyzer().terms(passage.contents)) for passage in passages[:300]}
    by_id = {passage.id: passage for passage in passages}
    build_index(passages[:300], tmp_path)
    queries = list(make_queries(passages[:300], 24))
    for query, hits in zip(queries, Bm25Retriever(tmp_path).search(queries, 5), strict=True):
        expected = reference_scores(texts, query, 5)
        assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected], rel=1e-5)
        assert [hit.passage for hit in hits] == [by_id[hit.passage.id] for hit in hits]


def test_repeated_query_word_counts_twice(zoo: Bm25Retriever) -> None:
    (once,), (twice,) = zoo.search(["otter", "otter otter"], 3)
    assert twice.score == pytest.approx(2 * once.score)


def test_ties_are_ordered_by_id_as_text(zoo: Bm25Retriever) -> None:
    (hits,) = zoo.search(["fish river"], 10)
    assert [hit.passage.id for hit in hits] == ["11", "2", "9"]
    assert hits[0].score == hits[1].score
    assert ids(zoo.search(["fish river"], 1)) == [["11"]]


def test_query_without_matching_terms_finds_nothing(zoo: Bm25Retriever) -> None:
    assert zoo.search(["", "?!", "the of and", "xylophone"], 3) == [[], [], [], []]
    assert zoo.search([], 3) == []
    assert zoo.search(["otter"], 0) == [[]]


@given(st.lists(st.floats(0, 4, width=16), min_size=1), st.integers(1, 12), st.integers(1, 5), st.randoms())
def test_best_selects_the_highest_scores(values: list[float], k: int, stretch: int, rng: Random) -> None:
    rank = list(range(len(values)))
    rng.shuffle(rank)
    positive = (index for index in range(len(values)) if values[index] > 0)
    expected = sorted(positive, key=lambda index: (-values[index], rank[index]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentgym_envs.retrieval.bm25._BLOCK_SIZE", stretch)
        selected = best(np.array(values, dtype=np.float32), np.array(rank, dtype=np.int32), k)
    assert selected.tolist() == expected[:k]


@given(query=st.text())
def test_any_text_is_a_valid_query(zoo: Bm25Retriever, query: str) -> None:
    (hits,) = zoo.search([query], 2)
    assert len(hits) <= 2


def test_threads_and_batches_find_the_same_passages(retriever: Bm25Retriever, passages: list[Passage]) -> None:
    queries = list(make_queries(passages, 200))
    expected = [retriever.search([query], 3)[0] for query in queries]
    assert retriever.search(queries, 3) == expected
    with ThreadPoolExecutor(8) as threads:
        assert [hits for (hits,) in threads.map(lambda query: retriever.search([query], 3), queries)] == expected


def _search_in_child(
    retriever: Bm25Retriever, queries: list[str], results: multiprocessing.SimpleQueue[object]
) -> None:
    results.put(ids(retriever.search(queries, 3)))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of Python 3.12, at a fork
def test_forked_process_can_search(retriever: Bm25Retriever, passages: list[Passage]) -> None:
    queries = list(make_queries(passages, 20))
    expected = ids(retriever.search(queries, 3))
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_search_in_child, args=(retriever, queries, results))
    child.start()
    assert results.get() == expected
    child.join()
    assert child.exitcode == 0


def test_index_is_memory_mapped(retriever: Bm25Retriever) -> None:
    assert all(isinstance(retriever._scorer.scores[part], np.memmap) for part in ("data", "indices", "indptr"))


def test_index_is_built_once_per_corpus(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_retriever(f"bm25:{corpus}")
    hits = first.search(["state of the art"], 2)
    first.close()
    monkeypatch.setattr("agentgym_envs.retrieval.bm25.build_index", None)
    second = open_retriever(f"bm25:{corpus}")
    assert second.search(["state of the art"], 2) == hits
    second.close()


def test_changed_corpus_gets_a_new_index(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    for word in ("heron", "kingfisher"):
        corpus.write_text(json.dumps({"id": "1", "text": word}) + "\n")
        retriever = open_retriever(f"bm25:{corpus}")
        assert ids(retriever.search([word], 1)) == [["1"]]
        retriever.close()


def test_first_of_two_concurrent_builds_is_used(cache: Path) -> None:
    def passages() -> list[Passage]:
        faster.append(cached_index("race", lambda: ZOO))
        return ZOO

    faster: list[Path] = []
    assert [cached_index("race", passages)] == faster
    assert not list((cache / "agentgym" / "bm25").glob(".building-*"))


def test_invalid_corpus_leaves_no_index(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"id": "1", "text": "fine"}\nnot fine\n')
    before = set((cache / "agentgym" / "bm25").iterdir())
    with pytest.raises(CorpusError, match="line 2"):
        open_retriever(f"bm25:{tmp_path / 'c.jsonl'}")
    assert set((cache / "agentgym" / "bm25").iterdir()) == before


def test_invalid_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no bm25 index; `searchqa-index CORPUS"):
        Bm25Retriever(tmp_path)
    (tmp_path / "bm25.json").write_text('{"format": 0}')
    with pytest.raises(ValueError, match="an index of format 0, this version reads 1; build it again"):
        Bm25Retriever(tmp_path)
    with pytest.raises(CorpusError, match="no words in it"):
        build_index([Passage("1", "", "the and of")], tmp_path)
