"""Retrievers by name: what is refused, and who shares what."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentgym_envs.retrieval import open_retriever, specs
from agentgym_envs.retrieval.http import HttpRetriever
from gymnasium.error import DependencyNotInstalled
from library import ids


@pytest.mark.parametrize("spec", ["", " ", "elastic", "elastic:x", "bm25:", "pyserini", "pyserini:", " bm25", "BM25"])
def test_an_unknown_retriever_is_told_what_exists(spec: str) -> None:
    with pytest.raises(ValueError, match="there are bm25, bm25:CORPUS, pyserini:INDEX and http://HOST:PORT"):
        open_retriever(spec)


@pytest.mark.parametrize("spec", ["http:", "http://", "https:///retrieve", "http://a:99999", "http://a:0"])
def test_an_address_that_is_none(spec: str) -> None:
    with pytest.raises(ValueError, match="is no address of a retrieval server; write it as http://HOST:PORT"):
        open_retriever(spec)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("bm25:/nowhere/c.jsonl", "There is no corpus /nowhere/c.jsonl"),
        ("pyserini:/nowhere/index", "There is no index folder /nowhere/index"),
        ("pyserini:{folder}", "holds no index of Pyserini's; `searchqa-index CORPUS .*` makes one"),
        ("bm25:{folder}", "holds no bm25 index"),
        ("pyserini:x?fast=1", "pyserini:INDEX knows no option fast; its options are documents, encoder, heap, threads"),
        ("pyserini:x?threads=0", "threads=0 is no whole number from 1 on"),
        ("pyserini:x?heap=much", "heap=much is no size; write it as 512m or 2g"),
    ],
)
def test_what_is_not_there_is_named(spec: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        open_retriever(spec.format(folder=tmp_path))


def test_one_retriever_for_all_who_name_it(corpus: Path) -> None:
    first, second = open_retriever(f"bm25:{corpus}"), open_retriever(f"bm25:{corpus}")
    assert specs._open[f"bm25:{corpus}"].holders == 2
    first.close()
    first.close()
    assert ids(second.search(["naive cafe"], 1)) == ids(second.search(["naive cafe"], 1))
    with pytest.raises(ValueError, match="was closed; open it anew"):
        first.search(["naive"], 1)
    second.close()
    assert f"bm25:{corpus}" not in specs._open


def test_the_last_to_leave_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(HttpRetriever, "close", lambda self: closed.append(self.url))
    leases = [open_retriever("http://127.0.0.1:9") for _ in range(3)]
    for lease in leases:
        assert closed == []
        lease.close()
    assert closed == ["http://127.0.0.1:9/retrieve"]


def test_without_pyserini_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DependencyNotInstalled, match=r"pip install 'agentgym-envs\[pyserini\]'"):
        open_retriever("pyserini:wikipedia-dpr-100w")
