"""Makes an index of a corpus file, for `bm25:FOLDER` or `pyserini:FOLDER`; the folder appears when it is whole."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

from agentgym_envs.retrieval.bm25 import build_index, is_index
from agentgym_envs.retrieval.corpus import CorpusError, read_corpus
from agentgym_envs.retrieval.passages import Passage

Backend = Literal["pyserini", "bm25"]
Told = Callable[[str, int], None]
"""Hears what is being done, and how many passages are read so far."""
_EVERY = 1_000


def make_index(
    corpus: Path, out: Path, *, backend: Backend = "pyserini", threads: int = 1, overwrite: bool = False, told: Told
) -> int:
    """Index the passages of `corpus` into the folder `out`; returns how many there are.

    Whatever ends it before, Ctrl-C too, leaves `out` as it was. Nothing but an index or an empty folder is replaced.

    Args:
        corpus: See `read_corpus`.
        out: The folder to make.
        backend: Which retriever is to search it.
        threads: Lucene's; with more than one the order of passages with equal scores isn't the corpus's.
        overwrite: Replace an index that is there.
        told: Is called about once in 1,000 passages.

    Raises:
        CorpusError: when the corpus can't be read or is empty.
        FileExistsError: when `out` is there and isn't to be replaced, is no index, or holds the corpus.
        ValueError: when Lucene didn't take every passage.
        EnvFault: when the process of Lucene ended.
    """
    passages = read_corpus(corpus)
    out = out.resolve()
    if out.exists():
        _check_replaceable(out, corpus.resolve(), overwrite)
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        counted = _counted(passages, told)
        made = build_index(counted, fresh) if backend == "bm25" else _lucene(counted, fresh, threads, told)
        fresh.chmod(0o755)  # a temporary folder is its maker's alone
        _put_in_place(fresh, out)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return made


def _check_replaceable(out: Path, corpus: Path, overwrite: bool) -> None:
    """Raises FileExistsError unless `out` may be deleted for a new index."""
    if not overwrite:
        raise FileExistsError(f"{out} is there already; choose another folder, or replace it with --overwrite.")
    index = is_index(out) or any(out.glob("segments_*"))
    if not index and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(
            f"{out} is neither an index nor an empty folder, so --overwrite leaves it alone; choose another folder."
        )
    if corpus.is_relative_to(out):
        raise FileExistsError(
            f"{out} holds the corpus {corpus}, which --overwrite would delete; choose another folder."
        )


def _put_in_place(fresh: Path, out: Path) -> None:
    """Name `fresh` `out`; what was there is put aside, and deleted only once the new one stands."""
    if not out.exists():
        fresh.rename(out)
        return
    old = fresh.with_name(f"{fresh.name}.old")
    out.rename(old)
    try:
        fresh.rename(out)
    except BaseException:
        old.rename(out)
        raise
    shutil.rmtree(old)


def _counted(passages: Iterable[Passage], told: Told) -> Iterator[Passage]:
    number = 0
    for number, passage in enumerate(passages, 1):
        yield passage
        if number % _EVERY == 0:
            told("reading", number)
    if not number:
        raise CorpusError("The corpus holds no passages; there is nothing to index.")
    told("indexing", number)


def _lucene(passages: Iterable[Passage], folder: Path, threads: int, told: Told) -> int:
    """Write the passages as the files that Anserini reads, one for each thread, and let it index them."""
    from agentgym_envs.retrieval.lucene import index_folder

    with tempfile.TemporaryDirectory(prefix=f"{folder.name}-input-", dir=folder.parent) as place:
        number = _write_parts(passages, Path(place), threads)
        index_folder(Path(place), folder, passages=number, threads=threads)
    return number


def _write_parts(passages: Iterable[Passage], place: Path, parts: int) -> int:
    """Deal the passages out to `parts` files; returns how many there are."""
    from contextlib import ExitStack

    number = 0
    with ExitStack() as stack:
        files = [stack.enter_context((place / f"{part:03}.jsonl").open("w", encoding="utf-8")) for part in range(parts)]
        for passage in passages:
            row = {"id": passage.id, "contents": passage.contents}
            files[number % parts].write(json.dumps(row) + "\n")
            number += 1
    return number
