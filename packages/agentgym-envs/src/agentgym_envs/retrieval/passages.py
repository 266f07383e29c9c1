"""The types of passage retrieval: passages, hits and the retriever protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_QUERY_CHARS, MAX_TOPK = 4_096, 1_000
"""Limits for servers and Lucene: longer queries are truncated, and a larger `k` is reduced."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text in a corpus."""

    id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        """The quoted title and the text on two lines: the indexed text, called `contents` in Search-R1's corpora."""
        return f'"{self.title}"\n{self.text}'


@dataclass(frozen=True, slots=True)
class Hit:
    """A search result: a passage and its score."""

    passage: Passage
    score: float
    """The backend's score. Higher is better; scores are comparable only within one query."""


class Retriever(Protocol):
    """The protocol of all search backends. Thread-safe."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return up to `k` passages for each query, best first. A query without words has no hits.

        Servers and Lucene read the first 4,096 characters of a query and return at most 1,000 passages.

        Raises:
            EnvFault: if the backend (a process or server) failed; the next call tries it again.
        """
        ...

    def close(self) -> None:
        """Release processes and connections. Idempotent."""
        ...


def sendable(query: str) -> str:
    """Truncate `query` to `MAX_QUERY_CHARS` and replace unpaired surrogates, which can't be sent to another process."""
    return query[:MAX_QUERY_CHARS].encode(errors="replace").decode()
