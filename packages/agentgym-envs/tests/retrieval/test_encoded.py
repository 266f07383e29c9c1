"""Tests of dense and learned-sparse indexes without their models: the searcher and the source of the texts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from agentgym_envs.retrieval import lucene_worker as worker

SETTINGS = {"encoder": "some/model", "documents": "", "threads": 4}


class Searcher:
    """Stand-in for a searcher of Pyserini. It finds passage 7 for every query and keeps its arguments."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.arguments = (*arguments, *named.items())

    def batch_search(self, queries: list[str], names: list[str], k: int, threads: int) -> dict[str, list[Any]]:
        assert len(queries) == len(names)
        return {name: [SimpleNamespace(docid="7", score=0.5)] * k for name in reversed(names)}


class TextSearcher:
    """Stand-in for Anserini's SimpleSearcher over the index with the texts."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def doc(self, name: str) -> Any:
        return {"raw": f"{name} of {self.folder}"} if name == "7" else None


@pytest.fixture
def pyserini(monkeypatch: pytest.MonkeyPatch) -> None:
    def module(name: str, **names: Any) -> None:
        stand_in = ModuleType(name)
        vars(stand_in).update(names)
        monkeypatch.setitem(sys.modules, name, stand_in)

    tables: dict[str, dict[str, Any]] = {
        f"{kind}_INDEX_INFO": {} for kind in ("TF", "IMPACT", "LUCENE_HNSW", "LUCENE_FLAT", "FAISS")
    }
    tables["TF_INDEX_INFO"] = {"wiki": {}}
    tables["IMPACT_INDEX_INFO"] = {"wiki.splade": {"texts": "wiki"}}
    tables["FAISS_INDEX_INFO"] = {"wiki.dpr": {"texts": "wiki"}}
    tables["LUCENE_FLAT_INDEX_INFO"] = {"wiki.flat": {"texts": "wiki"}}
    module("pyserini.prebuilt_index_info", **tables)
    module("pyserini.util", download_prebuilt_index=lambda name, verbose: f"/cache/{name}")
    module("pyserini.search.faiss", FaissSearcher=type("Faiss", (Searcher,), {}))
    lucene = ("LuceneImpactSearcher", "LuceneFlatDenseSearcher", "LuceneHnswDenseSearcher")
    module("pyserini.search.lucene", **{name: type(name, (Searcher,), {}) for name in lucene})
    monkeypatch.setattr(worker, "_java", lambda name: TextSearcher)


def search(**settings: str) -> Sequence[Any]:
    return worker._open({**SETTINGS, **settings})(["a", "b"], 1)


@pytest.mark.parametrize("name", ["wiki.dpr", "wiki.splade", "wiki.flat"])
def test_prebuilt_index_uses_its_own_texts(pyserini: None, name: str) -> None:
    assert search(index=name) == [[("7", 0.5, "7 of /cache/wiki")]] * 2


def test_texts_of_another_index_are_used_on_request(pyserini: None, tmp_path: Path) -> None:
    assert search(index="wiki.dpr", documents=str(tmp_path)) == [[("7", 0.5, f"7 of {tmp_path}")]] * 2


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("wiki.dpr", "Faiss"),
        ("wiki.splade", "LuceneImpactSearcher"),
        ("wiki.flat", "LuceneFlatDenseSearcher"),
        ("{folder}/faiss", "Faiss"),
        ("{folder}/lucene", "LuceneHnswDenseSearcher"),
    ],
)
def test_searcher_matches_the_kind_of_index(pyserini: None, tmp_path: Path, name: str, kind: str) -> None:
    for folder in ("faiss", "lucene"):
        (tmp_path / folder).mkdir()
    (tmp_path / "faiss" / "docid").touch()
    folder, info = worker._find(name.format(folder=tmp_path))
    searcher = worker._encoded(folder, info, "some/model")
    assert type(searcher).__name__ == kind
    assert searcher.arguments[0] == folder
    assert searcher.arguments[1] in ("some/model", ("encoder", "some/model"))


def test_passage_without_a_text_is_refused(pyserini: None) -> None:
    with pytest.raises(worker.BadRequest, match="has no passage 8; documents=INDEX belongs to another corpus"):
        worker._reader("/cache/wiki")("8")


def test_text_is_taken_from_contents_or_refused() -> None:
    assert worker._stored({"contents": '"t"\nx'}, "7") == '{"id": "7", "contents": "\\"t\\"\\nx"}'
    with pytest.raises(worker.BadRequest, match="This index doesn't store its passages' texts"):
        worker._stored({}, "7")
