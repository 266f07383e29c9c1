"""Makes an index of a corpus file, for `bm25:FOLDER` or `pyserini:FOLDER`; the folder appears when it is whole."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

from agentgym_envs.retrieval.bm25 import build_index
from agentgym_envs.retrieval.corpus import read_corpus
from agentgym_envs.retrieval.passages import Passage

Backend = Literal["pyserini", "bm25"]
Told = Callable[[str, int], None]
"""Hears what is being done, and how many passages are read so far."""
_EVERY = 1_000


def make_index(
    corpus: Path, out: Path, *, backend: Backend = "pyserini", threads: int = 1, overwrite: bool = False, told: Told
) -> int:
    """Index the passages of `corpus` into the folder `out`; returns how many there are.

    Whatever ends it before, Ctrl-C too, leaves `out` as it was.

    Args:
        corpus: See `read_corpus`.
        out: The folder to make.
        backend: Which retriever is to search it.
        threads: Lucene's; with more than one the order of passages with equal scores isn't the corpus's.
        overwrite: Replace a folder that is there.
        told: Is called about once in 1,000 passages.

    Raises:
        CorpusError: when the corpus can't be read.
        FileExistsError: when `out` is there and isn't to be replaced.
        ValueError: when Lucene didn't take every passage.
        EnvFault: when the process of Lucene ended.
    """
    passages = read_corpus(corpus)
    if out.exists() and not overwrite:
        raise FileExistsError(f"{out} is there already; choose another folder, or replace it with --overwrite.")
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        counted = _counted(passages, told)
        made = build_index(counted, fresh) if backend == "bm25" else _lucene(counted, fresh, threads, told)
        if out.is_dir():
            shutil.rmtree(out)
        else:
            out.unlink(missing_ok=True)
        fresh.chmod(0o755)  # a temporary folder is its maker's alone
        fresh.rename(out)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return made


def _counted(passages: Iterable[Passage], told: Told) -> Iterator[Passage]:
    number = 0
    for number, passage in enumerate(passages, 1):
        yield passage
        if number % _EVERY == 0:
            told("reading", number)
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
