"""Builds passages from sentences: each fact in one of several wordings, in one of several orders.

Wordings and order depend only on the id of the passage. `Writer` collects the sentences, which are written in the
modules `prose_*.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgym_envs.retrieval.passages import Passage
from agentgym_envs.worlds.searchqa.almanac.words import capitalised, choose, shuffled


class Writer:
    """The sentences of one passage."""

    def __init__(self, passage_id: str, title: str) -> None:
        self.id = passage_id
        self.title = title
        self._first: list[str] = []
        self._rest: list[str] = []

    def opens(self, *wordings: str) -> None:
        """Add a fact to the start of the passage, in one of these wordings."""
        self._first.append(self._chosen(wordings))

    def says(self, *wordings: str) -> None:
        """Add a fact that can come anywhere after the opening, in one of these wordings."""
        self._rest.append(self._chosen(wordings))

    def passage(self) -> Passage:
        """Return the passage."""
        sentences = [*self._first, *shuffled(f"{self.id} order", self._rest)]
        return Passage(self.id, self.title, " ".join(map(capitalised, sentences)))

    def _chosen(self, wordings: Sequence[str]) -> str:
        return choose(f"{self.id} {len(self._first)} {len(self._rest)}", wordings)
