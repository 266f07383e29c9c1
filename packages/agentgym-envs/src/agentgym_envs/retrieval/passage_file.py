"""Passages on disk with random access.

`passages.jsonl` has one passage per line and `offsets.npy` the byte offset of each. Both are memory-mapped, so that all
processes of a machine share one copy. Does not depend on any index.
"""

from __future__ import annotations

import json
import mmap
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from agentgym_envs.retrieval.corpus import passage_of
from agentgym_envs.retrieval.passages import Passage

_TEXT, _OFFSETS = "passages.jsonl", "offsets.npy"


def write_passages(folder: Path, passages: Iterable[Passage]) -> Iterator[Passage]:
    """Yield `passages` while writing them to `folder`. The files are complete once the iterator is exhausted."""
    offsets = array("q", [0])
    with (folder / _TEXT).open("wb") as file:
        for passage in passages:
            row = {"id": passage.id, "title": passage.title, "text": passage.text}
            offsets.append(offsets[-1] + file.write(json.dumps(row).encode() + b"\n"))
            yield passage
    np.save(folder / _OFFSETS, np.asarray(offsets, dtype=np.int64))


class PassageFile:
    """A read-only sequence of the passages in a folder of `write_passages`; safe for threads and forks."""

    def __init__(self, folder: Path) -> None:
        """Memory-map the files. Raises ValueError if their sizes don't match."""
        self._offsets = np.load(folder / _OFFSETS, mmap_mode="r")
        with (folder / _TEXT).open("rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(self._text) != self._offsets[-1]:
            raise ValueError(f"{folder / _TEXT} is incomplete; build the index again.")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Passage:
        begin, end = int(self._offsets[index]), int(self._offsets[index + 1])
        return passage_of(json.loads(self._text[begin:end]))
