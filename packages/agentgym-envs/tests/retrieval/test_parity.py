"""Tests of in-process BM25 against Lucene: the top 3 passages of the almanac for a fixed set of queries.

`lucene_top3.json` contains Lucene's results; `uv run python <this file>` updates it after a change of the almanac. Two
metrics are compared: the share of queries with the same top 3, and the mean share of Lucene's top 3 that BM25 finds.
Lucene rounds the lengths of passages above 40 terms, so passages with nearly equal scores may swap ranks.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from agentgym_envs.retrieval import open_retriever
from agentgym_envs.retrieval.indexing import make_index
from agentgym_envs.retrieval.lucene import LuceneRetriever
from agentgym_envs.worlds.searchqa.almanac import passages
from small_corpus import ids, make_queries, write_corpus

SAVED = Path(__file__).parent / "lucene_top3.json"
COUNT, K = 400, 3
MIN_AGREEMENT = 0.95


@pytest.fixture(autouse=True)
def cache() -> None:
    """Use the user's cache, unlike the other tests: building the almanac takes seconds."""


@functools.cache
def almanac_queries() -> list[str]:
    return list(make_queries(passages(), COUNT))


def fingerprint() -> str:
    """Return a hash of the passages and their order."""
    text = "".join(f"{passage.id}\0{passage.contents}\0" for passage in passages())
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def search_with_lucene() -> list[list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(Path(folder) / "almanac.jsonl", passages())
        make_index(corpus, Path(folder) / "index", on_progress=lambda phase, count: None)
        retriever = LuceneRetriever(str(Path(folder) / "index"))
        results = ids(retriever.search(almanac_queries(), K))
        retriever.close()
    return results


def search_with_bm25() -> list[list[str]]:
    retriever = open_retriever("bm25")
    results = ids(retriever.search(almanac_queries(), K))
    retriever.close()
    return results


def agreement(actual: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]) -> tuple[float, float]:
    """Return the share of queries with equal sets of passages, and the mean share of expected passages found."""
    pairs = [(set(a), set(b)) for a, b in zip(actual, expected, strict=True)]
    same = sum(a == b for a, b in pairs) / len(pairs)
    return same, sum(len(a & b) / len(b) if b else float(not a) for a, b in pairs) / len(pairs)


def to_json(results: list[list[str]]) -> str:
    pairs = zip(almanac_queries(), results, strict=True)
    rows = [json.dumps([query, names], ensure_ascii=False) for query, names in pairs]
    body = ",\n    ".join(rows)
    return f'{{\n  "corpus": "{fingerprint()}",\n  "top": [\n    {body}\n  ]\n}}\n'


def test_agreement_compares_sets_of_passages() -> None:
    assert agreement([["a", "b"], ["c"], []], [["b", "a"], ["d"], []]) == pytest.approx((2 / 3, 2 / 3))
    assert agreement([["a", "b", "x"]], [["a", "b", "c"]]) == pytest.approx((0, 2 / 3))


def test_bm25_agrees_with_the_saved_results_of_lucene() -> None:
    saved = json.loads(SAVED.read_text(encoding="utf-8"))
    assert saved["corpus"] == fingerprint(), f"the almanac changed; run: uv run python {__file__}"
    assert [query for query, _ in saved["top"]] == almanac_queries()
    same, shared = agreement(search_with_bm25(), [names for _, names in saved["top"]])
    assert same >= MIN_AGREEMENT
    assert shared >= MIN_AGREEMENT


@pytest.mark.long
def test_lucene_reproduces_the_saved_results(java: None) -> None:
    assert to_json(search_with_lucene()) == SAVED.read_text(encoding="utf-8")


if __name__ == "__main__":
    results = search_with_lucene()
    SAVED.write_text(to_json(results), encoding="utf-8")
    sys.stdout.write("same top 3 {:.4f}, shared {:.4f}\n".format(*agreement(search_with_bm25(), results)))
