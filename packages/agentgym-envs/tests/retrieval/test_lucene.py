"""Tests of Lucene in a worker process: concurrent callers, ending processes, and refused indexes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.retrieval import Passage, Retriever, open_retriever
from agentgym_envs.retrieval.bm25 import Bm25Retriever, build_index
from agentgym_envs.retrieval.http import HttpRetriever
from agentgym_envs.retrieval.indexing import make_index
from agentgym_envs.retrieval.lucene import LuceneRetriever, index_folder
from patience import eventually
from small_corpus import ids, is_running, make_queries, write_corpus


def test_hits_contain_complete_passages(lucene: LuceneRetriever, passages: list[Passage]) -> None:
    by_id = {passage.id: passage for passage in passages}
    for (hit,) in lucene.search([passage.contents for passage in passages[:12]], 1):
        assert hit.passage == by_id[hit.passage.id]
    assert ids(lucene.search(["creme brulee", "crème brûlée"], 1)) == [[], ["awk-2"]]


def test_lucene_agrees_with_in_process_bm25(lucene: LuceneRetriever, passages: list[Passage], tmp_path: Path) -> None:
    build_index(passages, tmp_path)
    queries = list(make_queries(passages, 300))
    by_lucene, by_bm25 = lucene.search(queries, 3), Bm25Retriever(tmp_path).search(queries, 3)
    same = [set(a) == set(b) for a, b in zip(ids(by_lucene), ids(by_bm25), strict=True)]
    assert sum(same) >= 0.95 * len(queries)
    assert by_lucene[0][0].score == pytest.approx(by_bm25[0][0].score, rel=0.05)


def test_concurrent_searches_match_one_batch(lucene: LuceneRetriever, passages: list[Passage]) -> None:
    queries = list(make_queries(passages, 160))
    batch = lucene.search(queries, 3)

    def matches(number: int) -> bool:
        k = 1 + number % 3
        return ids(lucene.search([queries[number]], k)) == [[hit.passage.id for hit in batch[number][:k]]]

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(matches, range(len(queries))))


def test_query_without_matching_terms_finds_nothing(lucene: LuceneRetriever) -> None:
    assert lucene.search(["", "?!", "the of and", "xylophone"], 3) == [[], [], [], []]
    assert lucene.search([], 3) == []
    assert lucene.search(["naïve"], 0) == [[]]


def test_any_text_is_a_valid_query(lucene: LuceneRetriever) -> None:
    long = " ".join(f"{a}{b}" for a in "abcdefghijklmnopqrstuvwxyz" for b in "abcdefghijklmnopqrstuvwxyz" * 2)
    unusual = [long, "lone \ud800 surrogate", "\x00", "🦆" * 50, "title:naive AND (", "*", "\n"]
    assert len(lucene.search(unusual, 2)) == len(unusual)
    assert ids(lucene.search(["naïve 🦆"], 1)) == [["awk-2"]]


@pytest.mark.long
def test_killed_worker_is_a_fault_and_is_replaced(lucene: LuceneRetriever) -> None:
    lucene.search(["naïve"], 1)
    first = lucene.worker_pid
    assert first is not None
    worker: Any = lucene._worker
    before = worker._asked
    os.kill(first, signal.SIGSTOP)
    with ThreadPoolExecutor(4) as threads:
        pending = [threads.submit(lucene.search, ["naïve"], 1) for _ in range(4)]
        eventually(lambda: worker._asked == before + 4)
        os.kill(first, signal.SIGKILL)
        for future in pending:
            with pytest.raises(EnvFault, match="The process that runs Lucene ended by signal 9"):
                future.result()
    assert ids(lucene.search(["naïve"], 1)) == [["awk-2"]]
    assert lucene.worker_pid != first
    assert not is_running(first)


def test_lucene_is_served_over_http(
    lucene: LuceneRetriever,
    passages: list[Passage],
    serve_retriever: Callable[[Retriever], AbstractContextManager[str]],
) -> None:
    queries = list(make_queries(passages, 48))
    with serve_retriever(lucene) as url, ThreadPoolExecutor(8) as threads:
        client = HttpRetriever(url)
        results = [hits for (hits,) in threads.map(lambda query: client.search([query], 3), queries)]
        assert results == lucene.search(queries, 3)
        client.close()


def _search_in_child(retriever: LuceneRetriever, results: multiprocessing.SimpleQueue[object]) -> None:
    results.put((ids(retriever.search(["naïve"], 1)), retriever.worker_pid))
    retriever.close()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of Python 3.12, at a fork
def test_forked_process_starts_its_own_worker(lucene: LuceneRetriever) -> None:
    lucene.search(["naïve"], 1)
    parent_worker = lucene.worker_pid
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_search_in_child, args=(lucene, results))
    child.start()
    rows, child_worker = results.get()
    child.join()
    assert (rows, child.exitcode) == ([["awk-2"]], 0)
    assert child_worker != parent_worker
    eventually(lambda: not is_running(child_worker))
    assert ids(lucene.search(["naïve"], 1)) == [["awk-2"]]
    assert lucene.worker_pid == parent_worker


OWNER = """
import os, signal, sys
from agentgym_envs.retrieval import open_retriever
retriever = open_retriever(sys.argv[1])
retriever.search(["naive"], 1)
if os.fork() == 0:
    signal.pause()  # holds the pipes of the worker, as a forked helper would
    os._exit(0)
print(retriever._shared.retriever.worker_pid, flush=True)
signal.pause()
"""


@pytest.mark.long
def test_worker_ends_with_its_owner(lucene_index: Path) -> None:
    command = [
        sys.executable,
        "-c",
        OWNER.replace("if os.fork()", "if (child := os.fork())"),
        f"pyserini:{lucene_index}",
    ]
    script = command[2].replace("print(", "print(child, ")
    with subprocess.Popen([*command[:2], script, command[3]], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        child, worker = map(int, owner.stdout.readline().split())
        try:
            assert is_running(worker)
            owner.kill()
            eventually(lambda: not is_running(worker))
            assert is_running(child)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.long
def test_close_ends_the_worker(lucene_index: Path) -> None:
    retriever = open_retriever(f"pyserini:{lucene_index}?threads=2&heap=256m")
    shared = retriever._shared.retriever  # type: ignore[attr-defined]
    assert shared.worker_pid is None
    retriever.search(["naïve"], 1)
    worker = shared.worker_pid
    retriever.close()
    retriever.close()
    assert not is_running(worker)


def test_unknown_prebuilt_index_is_refused_with_a_suggestion(java: None) -> None:
    retriever = open_retriever("pyserini:wikipedia-dpr-100")
    with pytest.raises(
        ValueError, match="no prebuilt index of Pyserini's of that name; did you mean wikipedia-dpr-100w"
    ):
        retriever.search(["a"], 1)
    retriever.close()


@pytest.mark.long
def test_dense_index_needs_faiss(java: None, tmp_path: Path) -> None:
    (tmp_path / "docid").write_text("1\n")
    retriever = open_retriever(f"pyserini:{tmp_path}?encoder=facebook/dpr-question_encoder-multiset-base")
    with pytest.raises(ValueError, match="uv pip install faiss-cpu"):
        retriever.search(["a"], 1)
    retriever.close()


@pytest.mark.long
def test_unreadable_index_is_a_fault_with_the_output_of_lucene(java: None, tmp_path: Path) -> None:
    (tmp_path / "segments_1").write_bytes(b"no index")
    retriever = open_retriever(f"pyserini:{tmp_path}")
    with pytest.raises(EnvFault, match=r"(?s)ended with status 1\. Its last output: .*segments_1"):
        retriever.search(["a"], 1)
    retriever.close()


@pytest.mark.long
def test_incomplete_index_is_detected(java: None, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    write_corpus(tmp_path / "input" / "part.jsonl", [Passage("1", "a", "heron")])
    with pytest.raises(ValueError, match="Lucene indexed 1 of 2 passages; the index is incomplete"):
        index_folder(tmp_path / "input", tmp_path / "out", passages=2, threads=1)


@pytest.mark.long
def test_index_built_by_several_threads_is_complete(
    java: None, tmp_path: Path, corpus: Path, passages: list[Passage]
) -> None:
    progress: list[tuple[str, int]] = []
    make_index(corpus, tmp_path / "out", threads=3, on_progress=lambda phase, count: progress.append((phase, count)))
    assert progress == [("reading", 1_000), ("indexing", len(passages))]
    retriever = open_retriever(f"pyserini:{tmp_path / 'out'}")
    (hits,) = retriever.search([passages[-1].text], 1)
    assert hits[0].passage == passages[-1]
    retriever.close()
