"""Tests of failures of the Lucene worker, on both sides of the pipe, with stand-ins for the process and for Lucene."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.retrieval import Passage, lucene_worker
from agentgym_envs.retrieval.lucene import LuceneRetriever, _passage
from agentgym_envs.retrieval.lucene_process import LuceneProcess
from agentgym_envs.retrieval.passages import MAX_QUERY_CHARS
from small_corpus import ids


def scripted_worker(monkeypatch: pytest.MonkeyPatch, script: str) -> LuceneProcess:
    """Start a worker that runs a shell script."""

    def start(self: LuceneProcess, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen(["/bin/sh", "-c", script], stdin=pipe, stdout=pipe, stderr=self._log, bufsize=0)

    monkeypatch.setattr(LuceneProcess, "_start", start)
    return LuceneProcess({})


READY = """echo '{"ready": true}'; read request; """


@pytest.mark.parametrize(
    ("script", "ending"),
    [
        ("printf '{\"rea'", "with status 0"),
        (READY + """printf '{"id": 1, "fou'""", "with status 0"),
        (READY + """printf '{"id": 1, "found": []}'; exit 3""", "with status 3"),
        (READY + "echo nonsense; sleep 60", "by signal 9"),
        (READY + """echo '{"id": 7, "found": []}'; sleep 60""", "by signal 9"),
    ],
    ids=["before ready", "within an answer", "before the newline", "invalid JSON", "unknown request id"],
)
def test_pending_request_fails_when_the_worker_ends(monkeypatch: pytest.MonkeyPatch, script: str, ending: str) -> None:
    worker = scripted_worker(monkeypatch, script)
    with pytest.raises(EnvFault, match=f"The process that runs Lucene ended {ending}"):
        worker.ask({}, 20)
    assert worker.ended
    worker.end()


def test_log_closed_by_another_thread_counts_as_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = scripted_worker(monkeypatch, READY + "exit 3")
    read = os.pread

    def close_and_read(descriptor: int, length: int, offset: int) -> bytes:
        worker.let_go()  # as another thread may do
        return read(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", close_and_read)
    with pytest.raises(EnvFault, match=r"Its last output: none"):
        worker.ask({}, 20)
    worker.end()


def test_fault_concerns_only_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    script = READY + """echo '{"id": 1, "fault": "no text"}'; read request; echo '{"id": 2, "found": []}'; read end"""
    worker = scripted_worker(monkeypatch, script)
    with pytest.raises(EnvFault, match="Lucene can't answer: no text"):
        worker.ask({}, 20)
    assert worker.ask({}, 20)["found"] == []
    worker.end()


def search_unless_bad(queries: Sequence[str], k: int) -> list[list[lucene_worker.Row]]:
    if "bad" in queries:
        raise OverflowError("too much")
    return [[(query, 1.0, "{}")] * k for query in queries]


def test_bad_query_does_not_fail_other_requests() -> None:
    all_queries = (["a"], ["b", "bad"], ["c"])
    batch = [{"id": number, "queries": queries, "k": number} for number, queries in enumerate(all_queries, 1)]
    good = {number: {"id": number, "found": [[(query, 1.0, "{}")] * number]} for number, query in ((1, "a"), (3, "c"))}
    assert lucene_worker._answered(search_unless_bad, batch) == [good[1], {"id": 2, "fault": "too much"}, good[3]]
    assert lucene_worker._answered(search_unless_bad, batch[::2]) == [good[1], good[3]]


@pytest.mark.parametrize(
    ("raw", "passage"),
    [
        ({"contents": '"T"\nx'}, Passage("7", "T", "x")),
        ({"id": "9", "title": "T", "text": "x"}, Passage("7", "T", "x")),
        ({"url": "u", "body": "x"}, Passage("7", "", '{"url": "u", "body": "x"}')),
        ([1], Passage("7", "", "[1]")),
    ],
)
def test_documents_with_any_fields_are_passages(raw: object, passage: Passage) -> None:
    assert _passage(json.dumps(raw), "7") == passage


def test_plain_text_is_a_passage() -> None:
    assert _passage("just text", "7") == Passage("7", "", "just text")


@pytest.mark.long
def test_long_query_and_large_k_are_cut_to_the_limits(lucene: LuceneRetriever) -> None:
    words = " ".join(f"w{number}" for number in range(70_000))
    assert lucene.search([words], 2) == [[]]
    pid = lucene.worker_pid
    assert ids(lucene.search([f"naïve {words}", "naïve"], 10**10)) == [["awk-2"]] * 2
    assert lucene.search([f"{' ' * MAX_QUERY_CHARS}naïve"], 1) == [[]]
    assert lucene.worker_pid == pid


@pytest.mark.long
def test_query_that_lucene_refuses_is_a_fault(lucene: LuceneRetriever) -> None:
    lucene.search(["naïve"], 1)
    pid, worker = lucene.worker_pid, lucene._running()
    words = " ".join(f"w{number}" for number in range(70_000))
    for request in ({"queries": [words], "k": 1}, {"queries": ["naïve"], "k": 10**10}):
        with pytest.raises(EnvFault, match="Lucene can't answer: "):
            worker.ask(request, 60)
    assert ids(lucene.search(["naïve"], 1)) == [["awk-2"]]
    assert lucene.worker_pid == pid


@pytest.mark.long
def test_worker_imports_nothing_from_the_working_directory(
    lucene_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("jnius.py", "queue.py"):
        (tmp_path / name).write_text("raise SystemExit('not this one')\n")
    monkeypatch.chdir(tmp_path)
    retriever = LuceneRetriever(str(lucene_index))
    assert ids(retriever.search(["naïve"], 1)) == [["awk-2"]]
    retriever.close()


@pytest.mark.long
def test_dead_worker_is_replaced_by_the_next_search(lucene: LuceneRetriever) -> None:
    lucene.search(["naïve"], 1)
    worker = lucene._running()
    os.kill(worker.process.pid, 9)
    worker.process.wait()
    assert ids(lucene.search(["naïve"], 1)) == [["awk-2"]]
    assert lucene.worker_pid != worker.process.pid


def test_faiss_index_needs_an_encoder(java: None, tmp_path: Path) -> None:
    (tmp_path / "docid").touch()
    with pytest.raises(ValueError, match="is a FAISS index, which needs encoder="):
        LuceneRetriever(str(tmp_path))
