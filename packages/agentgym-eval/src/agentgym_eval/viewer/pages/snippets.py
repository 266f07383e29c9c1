"""Snippets of the episodes in a list that show where the search terms occur.

The index finds the matching episodes but stores no text, so the few episodes on a page are read from their files and
searched turn by turn.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass

from agentgym_envs import Episode

from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.indexer import searchable_turns
from agentgym_eval.viewer.index.links import Address
from agentgym_eval.viewer.index.queries import fts_terms

_TOKENS = 16
_MAX_CHARACTERS = 200
"""Maximum length of a part of a snippet, for texts without word breaks."""
_BEGIN, _END = "\x02", "\x03"
_QUERY = "SELECT episode, turn, snippet(turns, 0, ?, ?, '…', ?) FROM turns WHERE turns MATCH ? ORDER BY turn"


@dataclass(frozen=True, slots=True)
class Snippet:
    """An excerpt from the first turn with all search terms or, if there is none, the first turn with one of them."""

    turn: int
    """The turn; the number of turns stands for the end."""
    parts: tuple[str, ...]
    """Its text, alternating between text and matches."""


def snippets(index: Index, addresses: Iterable[Address], text: str) -> dict[Address, Snippet]:
    """Return the snippets by episode, without episodes whose files have changed since they were found."""
    terms = fts_terms(text)
    if not terms:
        return {}
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE VIRTUAL TABLE turns USING fts5(text, episode UNINDEXED, turn UNINDEXED)")
        lines = index.lines(addresses)
        order = list(lines)
        for at, line in enumerate(lines.values()):
            turns = enumerate(_turns(line))
            database.executemany("INSERT INTO turns VALUES (?, ?, ?)", ((each, at, turn) for turn, each in turns))
        best: dict[Address, Snippet] = {}
        for query in (" AND ".join(terms), " OR ".join(terms)):
            for at, turn, snippet in database.execute(_QUERY, (_BEGIN, _END, _TOKENS, query)):
                parts = re.split(f"[{_BEGIN}{_END}]", snippet)
                best.setdefault(order[at], Snippet(turn, tuple(part[:_MAX_CHARACTERS] for part in parts)))
    return best


def _turns(line: str) -> list[str]:
    """Return the text of each turn, without the two characters that mark the bounds of a match."""
    with suppress(ValueError, TypeError, KeyError, AttributeError):  # the file is being rewritten
        return [re.sub(f"[{_BEGIN}{_END}]", " ", turn) for turn in searchable_turns(Episode.from_json(line))]
    return []
