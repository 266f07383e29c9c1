"""Tests of what `make_index` replaces and what it keeps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from agentgym_envs.retrieval.corpus import CorpusError
from agentgym_envs.retrieval.indexing import Backend, make_index


def make(corpus: Path, out: Path, *, backend: Backend = "bm25", overwrite: bool = True) -> int:
    return make_index(corpus, out, backend=backend, overwrite=overwrite, on_progress=lambda phase, count: None)


@pytest.fixture
def heron_corpus(tmp_path: Path) -> Path:
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": "1", "text": "a heron"}\n')
    return path


def file_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_folder_without_an_index_is_kept(heron_corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    for out in (tmp_path / "thesis", heron_corpus, heron_corpus.parent):
        with pytest.raises(FileExistsError, match="neither an index nor an empty folder"):
            make(heron_corpus, out)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"
    assert file_names(tmp_path) == {"c.jsonl", "thesis"}


def test_index_folder_with_the_corpus_is_kept(heron_corpus: Path, tmp_path: Path) -> None:
    make(heron_corpus, tmp_path / "index")
    inside = heron_corpus.rename(tmp_path / "index" / "c.jsonl")
    (tmp_path / "link").symlink_to(tmp_path / "index")
    for out in (tmp_path / "index", tmp_path / "link", tmp_path / "index" / ".." / "index"):
        with pytest.raises(FileExistsError, match=r"contains the corpus .*c\.jsonl, which --overwrite would delete"):
            make(inside, out)
    assert inside.exists()


@pytest.mark.parametrize("files", [(), ("bm25.json",), ("segments_3", "_0.cfs")])
def test_indexes_of_both_kinds_and_empty_folders_are_replaced(
    heron_corpus: Path, tmp_path: Path, files: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    for name in files:
        (tmp_path / "out" / name).touch()
    monkeypatch.chdir(tmp_path / "out")
    assert make(heron_corpus, Path()) == 1
    assert "segments_3" not in file_names(tmp_path / "out")
    assert (tmp_path / "out" / "bm25.json").stat().st_size
    assert file_names(tmp_path) == {"c.jsonl", "out"}


def test_old_index_is_restored_if_the_move_fails(
    heron_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    make(heron_corpus, out)
    (out / "mine").touch()
    rename = os.rename

    def failing_rename(self: Path, target: Path) -> Path:
        if target == out and not self.name.endswith(".old"):
            raise OSError("the disk is tired")
        rename(self, target)
        return target

    monkeypatch.setattr(Path, "rename", failing_rename)
    with pytest.raises(OSError, match="the disk is tired"):
        make(heron_corpus, out)
    assert (out / "mine").exists()
    assert file_names(tmp_path) == {"c.jsonl", "out"}


@pytest.mark.parametrize("backend", ["bm25", "pyserini"])
def test_empty_corpus_is_refused(java: None, tmp_path: Path, backend: Backend) -> None:
    (tmp_path / "c.jsonl").write_text("\n")
    with pytest.raises(CorpusError, match="contains no passages; there is nothing to index"):
        make(tmp_path / "c.jsonl", tmp_path / "out", backend=backend)
    assert file_names(tmp_path) == {"c.jsonl"}
