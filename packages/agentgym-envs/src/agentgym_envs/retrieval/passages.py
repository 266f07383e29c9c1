"""What is searched and what is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_QUERY_CHARS, MAX_TOPK = 4_096, 1_000
"""What is read of a query, and what is asked for at most, of a server or of Lucene."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that can be found."""

    id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        """Title in quotes and text on two lines: what is indexed, and what Search-R1's corpora call `contents`."""
        return f'"{self.title}"\n{self.text}'


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found."""

    passage: Passage
    score: float
    """The backend's own; higher is better, and only hits of one query compare."""


class Retriever(Protocol):
    """Finds passages. May be called from several threads at once."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The `k` best passages of each query, best first; fewer where fewer match, none for a query without words.

        Servers and Lucene hear the first 4,096 characters of a query, and find 1,000 passages at most.

        Raises:
            EnvFault: when the backend broke (a process, a server); the next call tries it anew.
        """
        ...

    def close(self) -> None:
        """Free processes and connections. May be called twice."""
        ...


def sendable(query: str) -> str:
    """`query` as another process takes it: cut to `MAX_QUERY_CHARS`, and without unpaired surrogates."""
    return query[:MAX_QUERY_CHARS].encode(errors="replace").decode()
