"""Builds an index of a corpus file for `bm25:FOLDER` or `pyserini:FOLDER`; the folder appears only when complete."""

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
OnProgress = Callable[[str, int], None]
"""A progress callback that takes the current phase and the number of passages read so far."""
_EVERY = 1_000


def make_index(
    corpus: Path,
    out: Path,
    *,
    backend: Backend = "pyserini",
    threads: int = 1,
    overwrite: bool = False,
    on_progress: OnProgress,
) -> int:
    """Index the passages of `corpus` into the folder `out` and return their number.

    An error or Ctrl-C leaves `out` unchanged. Only an index or an empty folder is ever replaced.

    Args:
        corpus: See `read_corpus`.
        out: The folder to create.
        backend: The retriever that will search the index.
        threads: Threads of Lucene; with more than one, ties aren't ordered as in the corpus.
        overwrite: Replace an existing index.
        on_progress: Progress callback, called about once per 1,000 passages.

    Raises:
        CorpusError: if the corpus can't be read or is empty.
        FileExistsError: if `out` exists and `overwrite` is off, is not an index, or contains the corpus.
        ValueError: if Lucene didn't index every passage.
        EnvFault: if the Lucene process ended.
    """
    passages = read_corpus(corpus)
    out = out.resolve()
    if out.exists():
        _check_replaceable(out, corpus.resolve(), overwrite)
    out.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        counted = _counted(passages, on_progress)
        number = build_index(counted, building) if backend == "bm25" else _lucene(counted, building, threads)
        building.chmod(0o755)  # mkdtemp gives access to the owner only
        _move_into_place(building, out)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return number


def _check_replaceable(out: Path, corpus: Path, overwrite: bool) -> None:
    """Raise FileExistsError unless `out` may be deleted for a new index."""
    if not overwrite:
        raise FileExistsError(f"{out} already exists; choose another folder, or replace it with --overwrite.")
    index = is_index(out) or any(out.glob("segments_*"))
    if not index and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(
            f"{out} is neither an index nor an empty folder, so --overwrite doesn't replace it; choose another folder."
        )
    if corpus.is_relative_to(out):
        raise FileExistsError(
            f"{out} contains the corpus {corpus}, which --overwrite would delete; choose another folder."
        )


def _move_into_place(building: Path, out: Path) -> None:
    """Rename `building` to `out`. An existing `out` is renamed first, and deleted only after the move succeeded."""
    if not out.exists():
        building.rename(out)
        return
    old = building.with_name(f"{building.name}.old")
    out.rename(old)
    try:
        building.rename(out)
    except BaseException:
        old.rename(out)
        raise
    shutil.rmtree(old)


def _counted(passages: Iterable[Passage], on_progress: OnProgress) -> Iterator[Passage]:
    number = 0
    for number, passage in enumerate(passages, 1):
        yield passage
        if number % _EVERY == 0:
            on_progress("reading", number)
    if not number:
        raise CorpusError("The corpus contains no passages; there is nothing to index.")
    on_progress("indexing", number)


def _lucene(passages: Iterable[Passage], folder: Path, threads: int) -> int:
    """Write the passages to one input file per thread and index them with Anserini."""
    from agentgym_envs.retrieval.lucene import index_folder

    with tempfile.TemporaryDirectory(prefix=f"{folder.name}-input-", dir=folder.parent) as source:
        number = _write_parts(passages, Path(source), threads)
        index_folder(Path(source), folder, passages=number, threads=threads)
    return number


def _write_parts(passages: Iterable[Passage], folder: Path, parts: int) -> int:
    """Distribute the passages over `parts` files round-robin and return their number."""
    from contextlib import ExitStack

    number = 0
    with ExitStack() as stack:
        names = [folder / f"{part:03}.jsonl" for part in range(parts)]
        files = [stack.enter_context(name.open("w", encoding="utf-8")) for name in names]
        for passage in passages:
            row = {"id": passage.id, "contents": passage.contents}
            files[number % parts].write(json.dumps(row) + "\n")
            number += 1
    return number
