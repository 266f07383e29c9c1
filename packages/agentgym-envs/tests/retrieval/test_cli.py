"""Tests of the commands `serve` and `searchqa-index` with retrievers."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from agentgym_envs.cli.main import searchqa_index, serve
from agentgym_envs.retrieval import Passage, open_retriever
from patience import PATIENCE, eventually
from serve_process import serve_process
from small_corpus import ids, is_running, retrieve


def command(function: str, *arguments: object) -> list[str]:
    start = f"import sys; from agentgym_envs.cli.main import {function}; sys.exit({function}())"
    return [sys.executable, "-c", start, *map(str, arguments)]


@pytest.mark.long
def test_serve_searches_until_ctrl_c(corpus: Path) -> None:
    with serve_process("--retriever", f"bm25:{corpus}", "--max-batch", "2") as server:
        assert server.ready_line.endswith(f", /retrieve from bm25:{corpus}\n")
        (row,) = retrieve(server.url, queries=["crème brûlée"], topk=1).json()["result"]
        assert row[0]["id"] == "awk-2"
        invalid = retrieve(server.url, queries="crème brûlée")
        assert (invalid.status_code, invalid.json()["error"]["type"]) == (422, "invalid")
        too_many = retrieve(server.url, queries=["a", "b", "c"])
        assert (too_many.status_code, too_many.json()["error"]["type"]) == (422, "invalid")
        assert "has 3 queries; the server accepts 2" in too_many.json()["error"]["message"]
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE) == 0
        # A request may count as pending for a moment after its client has the response.
        lines = [line for line in server.errors() if "pending request" not in line]
        assert lines == [f"Loading bm25:{corpus}", "Stopped."]


@pytest.mark.long
@pytest.mark.parametrize(
    ("spec", "status", "message"),
    [
        ("elastic", 2, "There is no retriever 'elastic'; there are bm25"),
        ("bm25:nowhere.jsonl", 2, "There is no corpus nowhere.jsonl"),
        ("http://127.0.0.1:9", 1, "http://127.0.0.1:9/retrieve can't be searched"),
    ],
)
def test_serve_reports_unusable_retrievers(
    spec: str, status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(["--retriever", spec, "--port", "0"]) == status
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("serve: ")
    assert message in last


def test_bm25_index_is_built_and_replaced_on_request(
    corpus: Path, tmp_path: Path, passages: list[Passage], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "index"
    arguments = [str(corpus), str(out), "--backend", "bm25"]
    assert searchqa_index(arguments) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{out} contains {len(passages)} passages; search it with bm25:{out}\n"
    assert printed.err == f"reading passages (1,000 so far)\nindexing passages ({len(passages):,} so far)\n"
    retriever = open_retriever(f"bm25:{out}")
    assert ids(retriever.search(["crème brûlée"], 1)) == [["awk-2"]]
    retriever.close()
    assert searchqa_index(arguments) == 2
    assert f"{out} already exists; choose another folder, or replace it with --overwrite" in capsys.readouterr().err
    (out / "mine").touch()
    assert searchqa_index([*arguments, "--overwrite"]) == 0
    assert not (out / "mine").exists()
    assert [path.name for path in out.parent.iterdir()] == ["index"]


@pytest.mark.long
def test_lucene_index_is_the_default(
    java: None, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "index"
    assert searchqa_index([str(corpus), str(out)]) == 0
    assert f"search it with pyserini:{out}" in capsys.readouterr().out
    retriever = open_retriever(f"pyserini:{out}")
    assert ids(retriever.search(["crème brûlée"], 1)) == [["awk-2"]]
    retriever.close()


@pytest.mark.parametrize("backend", ["bm25", "pyserini"])
def test_invalid_corpus_leaves_no_files(backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.jsonl").write_text('{"id": "1", "text": "a heron"}\n{}\n')
    assert searchqa_index([str(tmp_path / "c.jsonl"), str(tmp_path / "out"), "--backend", backend]) == 2
    assert "c.jsonl, line 2: it has neither text nor contents" in capsys.readouterr().err
    assert searchqa_index([str(tmp_path / "none.jsonl"), str(tmp_path / "out")]) == 2
    assert searchqa_index([str(tmp_path / "c.jsonl"), str(tmp_path / "out"), "--threads", "0"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["c.jsonl"]


@pytest.mark.long
@pytest.mark.parametrize("backend", ["bm25", "pyserini"])
def test_ctrl_c_leaves_no_partial_index(java: None, backend: str, tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    row = '{"id": "%d", "text": "%s"}\n'
    words = " ".join(f"word{number}" for number in range(60))
    corpus.write_text("".join(row % (number, words) for number in range(60_000)))
    arguments = command("searchqa_index", corpus, tmp_path / "out", "--backend", backend)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        phase = "indexing" if backend == "pyserini" else "reading"
        assert any(line.startswith(phase) for line in lines)
        workers = child_pids(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert list(lines)[-1] == "searchqa-index: interrupted.\n"
    eventually(lambda: not any(map(is_running, workers)))
    assert [path.name for path in tmp_path.iterdir()] == ["c.jsonl"]


def child_pids(pid: int) -> list[int]:
    completed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in completed.stdout.split()]


@pytest.mark.parametrize("main", [serve, searchqa_index])
def test_unknown_flags_are_refused(main: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--nonsense", "1"])  # type: ignore[operator]
    assert end.value.code == 2


@pytest.mark.parametrize("function", ["serve", "searchqa_index"])
def test_help_loads_no_heavy_packages(function: str) -> None:
    script = command(function)[2].replace(f"sys.exit({function}())", "")
    show = f"{script}\ntry:\n    {function}(['--help'])\nexcept SystemExit as end:\n    print(end.code, *sys.modules)"
    completed = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    status, *modules = completed.stdout.splitlines()[-1].split()
    assert status == "0"
    assert not {"bm25s", "fastapi", "httpx", "torch", "uvicorn", "Stemmer"} & set(modules)
