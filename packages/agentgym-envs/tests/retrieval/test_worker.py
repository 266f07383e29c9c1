"""Both sides of Lucene's process where something breaks, with stand-ins for the process and for Lucene."""

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
from agentgym_envs.retrieval.lucene import LuceneRetriever, Worker, _passage
from agentgym_envs.retrieval.passages import MAX_QUERY_CHARS
from small_corpus import ids


def scripted(monkeypatch: pytest.MonkeyPatch, script: str) -> Worker:
    """A worker that is a shell script."""

    def start(self: Worker, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen(["/bin/sh", "-c", script], stdin=pipe, stdout=pipe, stderr=self._log, bufsize=0)

    monkeypatch.setattr(Worker, "_start", start)
    return Worker({})


READY = """echo '{"ready": true}'; read request; """


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("printf '{\"rea'", "with status 0"),
        (READY + """printf '{"id": 1, "fou'""", "with status 0"),
        (READY + """printf '{"id": 1, "found": []}'; exit 3""", "with status 3"),
        (READY + "echo nonsense; sleep 60", "by signal 9"),
        (READY + """echo '{"id": 7, "found": []}'; sleep 60""", "by signal 9"),
    ],
    ids=["before it is ready", "in an answer", "before the end of a line", "no JSON", "an answer to nobody"],
)
def test_whoever_waits_is_told_that_the_worker_is_gone(monkeypatch: pytest.MonkeyPatch, script: str, how: str) -> None:
    worker = scripted(monkeypatch, script)
    with pytest.raises(EnvFault, match=f"The process that runs Lucene ended {how}"):
        worker.ask({}, 20)
    assert worker.ended
    worker.end()


def test_whoever_ends_the_worker_meanwhile_takes_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = scripted(monkeypatch, READY + "exit 3")
    read = os.pread

    def closed_before(number: int, length: int, offset: int) -> bytes:
        worker.let_go()  # as another thread does
        return read(number, length, offset)

    monkeypatch.setattr(os, "pread", closed_before)
    with pytest.raises(EnvFault, match=r"Its last output: none"):
        worker.ask({}, 20)
    worker.end()


def test_a_fault_is_its_askers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    script = READY + """echo '{"id": 1, "fault": "no text"}'; read request; echo '{"id": 2, "found": []}'; read end"""
    worker = scripted(monkeypatch, script)
    with pytest.raises(EnvFault, match="Lucene can't answer: no text"):
        worker.ask({}, 20)
    assert worker.ask({}, 20)["found"] == []
    worker.end()


def picky(queries: Sequence[str], k: int) -> list[list[lucene_worker.Row]]:
    if "bad" in queries:
        raise OverflowError("too much")
    return [[(query, 1.0, "{}")] * k for query in queries]


def test_one_bad_query_is_no_others_fault() -> None:
    batch = [{"id": at, "queries": queries, "k": at} for at, queries in enumerate((["a"], ["b", "bad"], ["c"]), 1)]
    good = {at: {"id": at, "found": [[(query, 1.0, "{}")] * at]} for at, query in ((1, "a"), (3, "c"))}
    assert lucene_worker._answered(picky, batch) == [good[1], {"id": 2, "fault": "too much"}, good[3]]
    assert lucene_worker._answered(picky, batch[::2]) == [good[1], good[3]]


@pytest.mark.parametrize(
    ("raw", "passage"),
    [
        ({"contents": '"T"\nx'}, Passage("7", "T", "x")),
        ({"id": "9", "title": "T", "text": "x"}, Passage("7", "T", "x")),
        ({"url": "u", "body": "x"}, Passage("7", "", '{"url": "u", "body": "x"}')),
        ([1], Passage("7", "", "[1]")),
    ],
)
def test_documents_of_any_form_are_passages(raw: object, passage: Passage) -> None:
    assert _passage(json.dumps(raw), "7") == passage


def test_text_that_is_no_json_is_a_passage() -> None:
    assert _passage("just text", "7") == Passage("7", "", "just text")


@pytest.mark.long
def test_no_text_and_no_number_is_too_much(lucene: LuceneRetriever) -> None:
    words = " ".join(f"w{number}" for number in range(70_000))
    assert lucene.search([words], 2) == [[]]
    pid = lucene.worker_pid
    assert ids(lucene.search([f"naïve {words}", "naïve"], 10**10)) == [["awk-2"]] * 2
    assert lucene.search([f"{' ' * MAX_QUERY_CHARS}naïve"], 1) == [[]]
    assert lucene.worker_pid == pid


@pytest.mark.long
def test_what_lucene_itself_refuses_is_a_fault_of_one_query(lucene: LuceneRetriever) -> None:
    lucene.search(["naïve"], 1)
    pid, running = lucene.worker_pid, lucene._running()
    many = " ".join(f"w{number}" for number in range(70_000))
    for request in ({"queries": [many], "k": 1}, {"queries": ["naïve"], "k": 10**10}):
        with pytest.raises(EnvFault, match="Lucene can't answer: "):
            running.ask(request, 60)
    assert ids(lucene.search(["naïve"], 1)) == [["awk-2"]]
    assert lucene.worker_pid == pid


@pytest.mark.long
def test_the_worker_imports_nothing_from_where_it_was_started(
    lucene_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("jnius.py", "queue.py"):
        (tmp_path / name).write_text("raise SystemExit('not this one')\n")
    monkeypatch.chdir(tmp_path)
    retriever = LuceneRetriever(str(lucene_index))
    assert ids(retriever.search(["naïve"], 1)) == [["awk-2"]]
    retriever.close()


@pytest.mark.long
def test_a_worker_that_died_unheard_is_replaced(lucene: LuceneRetriever) -> None:
    lucene.search(["naïve"], 1)
    worker = lucene._running()
    os.kill(worker.process.pid, 9)
    worker.process.wait()
    assert ids(lucene.search(["naïve"], 1)) == [["awk-2"]]
    assert lucene.worker_pid != worker.process.pid


def test_a_faiss_index_needs_its_encoder(java: None, tmp_path: Path) -> None:
    (tmp_path / "docid").touch()
    with pytest.raises(ValueError, match="is a FAISS index, which needs encoder="):
        LuceneRetriever(str(tmp_path))
