"""BM25 in process against Lucene: the three best passages of the almanac for a fixed set of queries.

`lucene_top3.json` holds what Lucene found; `uv run python <this file>` writes it anew when the almanac changed. Two
figures are taken: the share of queries whose three best are the same three, and the mean share of Lucene's three that
are found. Lucene rounds the lengths of passages above 40 terms, so of passages that score nearly alike another one may
be third.
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
from small_corpus import ids, queries, write_corpus

FROZEN = Path(__file__).parent / "lucene_top3.json"
COUNT, K = 400, 3
MANY = 0.95


@pytest.fixture(autouse=True)
def cache() -> None:
    """The user's own cache instead of the other tests': the almanac takes seconds to make."""


@functools.cache
def asked() -> list[str]:
    return list(queries(passages(), COUNT))


def fingerprint() -> str:
    """Of the passages searched: another text for others, or the same in another order."""
    text = "".join(f"{passage.id}\0{passage.contents}\0" for passage in passages())
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def lucene_finds() -> list[list[str]]:
    with tempfile.TemporaryDirectory() as place:
        corpus = write_corpus(Path(place) / "almanac.jsonl", passages())
        make_index(corpus, Path(place) / "index", told=lambda doing, read: None)
        retriever = LuceneRetriever(str(Path(place) / "index"))
        found = ids(retriever.search(asked(), K))
        retriever.close()
    return found


def bm25_finds() -> list[list[str]]:
    retriever = open_retriever("bm25")
    found = ids(retriever.search(asked(), K))
    retriever.close()
    return found


def agreement(ours: Sequence[Sequence[str]], theirs: Sequence[Sequence[str]]) -> tuple[float, float]:
    """The share of queries with the same set of passages, and the mean share of their passages that are ours too."""
    pairs = [(set(a), set(b)) for a, b in zip(ours, theirs, strict=True)]
    same = sum(a == b for a, b in pairs) / len(pairs)
    return same, sum(len(a & b) / len(b) if b else float(not a) for a, b in pairs) / len(pairs)


def document(found: list[list[str]]) -> str:
    rows = [json.dumps([query, names], ensure_ascii=False) for query, names in zip(asked(), found, strict=True)]
    body = ",\n    ".join(rows)
    return f'{{\n  "corpus": "{fingerprint()}",\n  "top": [\n    {body}\n  ]\n}}\n'


def test_agreement_is_counted() -> None:
    assert agreement([["a", "b"], ["c"], []], [["b", "a"], ["d"], []]) == pytest.approx((2 / 3, 2 / 3))
    assert agreement([["a", "b", "x"]], [["a", "b", "c"]]) == pytest.approx((0, 2 / 3))


def test_bm25_agrees_with_what_lucene_found() -> None:
    frozen = json.loads(FROZEN.read_text(encoding="utf-8"))
    assert frozen["corpus"] == fingerprint(), f"the almanac changed: uv run python {__file__}"
    assert [query for query, _ in frozen["top"]] == asked()
    same, shared = agreement(bm25_finds(), [names for _, names in frozen["top"]])
    assert same >= MANY
    assert shared >= MANY


@pytest.mark.long
def test_lucene_still_finds_it(java: None) -> None:
    assert document(lucene_finds()) == FROZEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    found = lucene_finds()
    FROZEN.write_text(document(found), encoding="utf-8")
    sys.stdout.write("same three {:.4f}, shared {:.4f}\n".format(*agreement(bm25_finds(), found)))
