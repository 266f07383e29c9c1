"""Passages on disk, any of them at hand without the others being in memory.

`passages.jsonl` holds one passage a line and `offsets.npy` where each begins. Both are mapped into memory, so that all
processes of a machine share one copy. Knows no index.
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
    """Pass `passages` on while they are written into `folder`; what is there is whole when the iterator ends."""
    offsets = array("q", [0])
    with (folder / _TEXT).open("wb") as file:
        for passage in passages:
            row = {"id": passage.id, "title": passage.title, "text": passage.text}
            offsets.append(offsets[-1] + file.write(json.dumps(row).encode() + b"\n"))
            yield passage
    np.save(folder / _OFFSETS, np.asarray(offsets, dtype=np.int64))


class PassageFile:
    """The passages of a folder that `write_passages` filled; read-only, for any number of threads and forks."""

    def __init__(self, folder: Path) -> None:
        """Map the files. Raises ValueError where they don't belong together."""
        self._offsets = np.load(folder / _OFFSETS, mmap_mode="r")
        with (folder / _TEXT).open("rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(self._text) != self._offsets[-1]:
            raise ValueError(f"{folder / _TEXT} isn't whole; make the index anew.")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Passage:
        begin, end = int(self._offsets[index]), int(self._offsets[index + 1])
        return passage_of(json.loads(self._text[begin:end]))
