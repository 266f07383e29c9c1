"""How a passage is made of sentences: each fact in one of several wordings, in one of several orders.

Which ones follows from the id of the passage alone. `Writer` collects the sentences; what they say stands in the
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
        """A fact that the passage begins with, in one of these wordings."""
        self._first.append(self._chosen(wordings))

    def says(self, *wordings: str) -> None:
        """A fact that may stand anywhere after the opening, in one of these wordings."""
        self._rest.append(self._chosen(wordings))

    def passage(self) -> Passage:
        """What was written."""
        sentences = [*self._first, *shuffled(f"{self.id} order", self._rest)]
        return Passage(self.id, self.title, " ".join(map(capitalised, sentences)))

    def _chosen(self, wordings: Sequence[str]) -> str:
        return choose(f"{self.id} {len(self._first)} {len(self._rest)}", wordings)
