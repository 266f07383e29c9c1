"""Lucene in a process of its own: many callers, what happens when somebody dies, and what it refuses."""

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
from small_corpus import ids, queries, runs, write_corpus


def test_it_finds_passages_whole(lucene: LuceneRetriever, passages: list[Passage]) -> None:
    known = {passage.id: passage for passage in passages}
    for (hit,) in lucene.search([passage.contents for passage in passages[:12]], 1):
        assert hit.passage == known[hit.passage.id]
    assert ids(lucene.search(["creme brulee", "crème brûlée"], 1)) == [[], ["awk-2"]]


def test_bm25_in_process_agrees(lucene: LuceneRetriever, passages: list[Passage], tmp_path: Path) -> None:
    build_index(passages, tmp_path)
    asked = list(queries(passages, 300))
    theirs, ours = lucene.search(asked, 3), Bm25Retriever(tmp_path).search(asked, 3)
    same = [set(a) == set(b) for a, b in zip(ids(theirs), ids(ours), strict=True)]
    assert sum(same) >= 0.95 * len(asked)
    assert theirs[0][0].score == pytest.approx(ours[0][0].score, rel=0.05)


def test_many_callers_at_once(lucene: LuceneRetriever, passages: list[Passage]) -> None:
    asked = list(queries(passages, 160))
    together = lucene.search(asked, 3)

    def alone(number: int) -> bool:
        k = 1 + number % 3
        return ids(lucene.search([asked[number]], k)) == [[hit.passage.id for hit in together[number][:k]]]

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(alone, range(len(asked))))


def test_what_matches_nothing_finds_nothing(lucene: LuceneRetriever) -> None:
    assert lucene.search(["", "?!", "the of and", "xylophone"], 3) == [[], [], [], []]
    assert lucene.search([], 3) == []
    assert lucene.search(["naïve"], 0) == [[]]


def test_any_text_may_be_asked(lucene: LuceneRetriever) -> None:
    long = " ".join(f"{a}{b}" for a in "abcdefghijklmnopqrstuvwxyz" for b in "abcdefghijklmnopqrstuvwxyz" * 2)
    odd = [long, "lone \ud800 surrogate", "\x00", "🦆" * 50, "title:naive AND (", "*", "\n"]
    assert len(lucene.search(odd, 2)) == len(odd)
    assert ids(lucene.search(["naïve 🦆"], 1)) == [["awk-2"]]


@pytest.mark.long
def test_a_killed_worker_is_a_fault_and_the_next_search_has_another(lucene: LuceneRetriever) -> None:
    lucene.search(["naïve"], 1)
    first = lucene.worker_pid
    assert first is not None
    worker: Any = lucene._worker
    before = worker._asked
    os.kill(first, signal.SIGSTOP)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(lucene.search, ["naïve"], 1) for _ in range(4)]
        eventually(lambda: worker._asked == before + 4)
        os.kill(first, signal.SIGKILL)
        for future in waiting:
            with pytest.raises(EnvFault, match="The process that runs Lucene ended by signal 9"):
                future.result()
    assert ids(lucene.search(["naïve"], 1)) == [["awk-2"]]
    assert lucene.worker_pid != first
    assert not runs(first)


def test_a_server_over_lucene(
    lucene: LuceneRetriever, passages: list[Passage], serving: Callable[[Retriever], AbstractContextManager[str]]
) -> None:
    asked = list(queries(passages, 48))
    with serving(lucene) as url, ThreadPoolExecutor(8) as threads:
        client = HttpRetriever(url)
        assert [hits for (hits,) in threads.map(lambda query: client.search([query], 3), asked)] == lucene.search(
            asked, 3
        )
        client.close()


def _search_in_child(retriever: LuceneRetriever, found: multiprocessing.SimpleQueue[object]) -> None:
    found.put((ids(retriever.search(["naïve"], 1)), retriever.worker_pid))
    retriever.close()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of Python 3.12, at a fork
def test_a_fork_has_a_worker_of_its_own(lucene: LuceneRetriever) -> None:
    lucene.search(["naïve"], 1)
    ours = lucene.worker_pid
    context = multiprocessing.get_context("fork")
    found = context.SimpleQueue()
    child = context.Process(target=_search_in_child, args=(lucene, found))
    child.start()
    rows, theirs = found.get()
    child.join()
    assert (rows, child.exitcode) == ([["awk-2"]], 0)
    assert theirs != ours
    eventually(lambda: not runs(theirs))
    assert ids(lucene.search(["naïve"], 1)) == [["awk-2"]]
    assert lucene.worker_pid == ours


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
def test_no_worker_outlives_its_owner(lucene_index: Path) -> None:
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
            assert runs(worker)
            owner.kill()
            eventually(lambda: not runs(worker))
            assert runs(child)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.long
def test_closing_ends_the_worker(lucene_index: Path) -> None:
    retriever = open_retriever(f"pyserini:{lucene_index}?threads=2&heap=256m")
    inner = retriever._shared.retriever  # type: ignore[attr-defined]
    assert inner.worker_pid is None
    retriever.search(["naïve"], 1)
    worker = inner.worker_pid
    retriever.close()
    retriever.close()
    assert not runs(worker)


def test_a_name_that_is_no_index(java: None) -> None:
    retriever = open_retriever("pyserini:wikipedia-dpr-100")
    with pytest.raises(
        ValueError, match="no prebuilt index of Pyserini's of that name; did you mean wikipedia-dpr-100w"
    ):
        retriever.search(["a"], 1)
    retriever.close()


@pytest.mark.long
def test_a_dense_index_needs_faiss(java: None, tmp_path: Path) -> None:
    (tmp_path / "docid").write_text("1\n")
    retriever = open_retriever(f"pyserini:{tmp_path}?encoder=facebook/dpr-question_encoder-multiset-base")
    with pytest.raises(ValueError, match="uv pip install faiss-cpu"):
        retriever.search(["a"], 1)
    retriever.close()


@pytest.mark.long
def test_an_index_that_lucene_cannot_read_is_a_fault_with_its_words(java: None, tmp_path: Path) -> None:
    (tmp_path / "segments_1").write_bytes(b"no index")
    retriever = open_retriever(f"pyserini:{tmp_path}")
    with pytest.raises(EnvFault, match=r"(?s)ended with status 1\. Its last output: .*segments_1"):
        retriever.search(["a"], 1)
    retriever.close()


@pytest.mark.long
def test_an_index_that_is_not_whole_is_noticed(java: None, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    write_corpus(tmp_path / "input" / "part.jsonl", [Passage("1", "a", "heron")])
    with pytest.raises(ValueError, match="Lucene indexed 1 of 2 passages; the index is incomplete"):
        index_folder(tmp_path / "input", tmp_path / "out", passages=2, threads=1)


@pytest.mark.long
def test_an_index_made_by_several_threads_holds_all(
    java: None, tmp_path: Path, corpus: Path, passages: list[Passage]
) -> None:
    told: list[tuple[str, int]] = []
    make_index(corpus, tmp_path / "out", threads=3, told=lambda doing, read: told.append((doing, read)))
    assert told == [("reading", 1_000), ("indexing", len(passages))]
    retriever = open_retriever(f"pyserini:{tmp_path / 'out'}")
    (hits,) = retriever.search([passages[-1].text], 1)
    assert hits[0].passage == passages[-1]
    retriever.close()
