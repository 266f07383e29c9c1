"""Where in an episode the words are that a list was searched for.

The index knows which episodes have them and holds no text, so the few on a page are read from their files and searched
turn by turn.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass

from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.indexer import searched_turns
from agentgym_eval.viewer.index.links import Address
from agentgym_eval.viewer.index.queries import terms

_TOKENS = 16
_LONGEST = 200
"""Characters of a stretch: some texts have no end of a word."""
_BEGIN, _END = "\x02", "\x03"
_FOUND = "SELECT episode, turn, snippet(said, 0, ?, ?, '…', ?) FROM said WHERE said MATCH ? ORDER BY turn"


@dataclass(frozen=True, slots=True)
class Snippet:
    """A few words of the first turn of an episode that has all words of a search, or of the first that has one."""

    turn: int
    """Behind the last one: the end."""
    stretches: tuple[str, ...]
    """Its text; every second stretch is what was looked for."""


def snippets(index: Index, addresses: Iterable[Address], text: str) -> dict[Address, Snippet]:
    """By episode; of those that no longer are what they were when they were found, none."""
    words = terms(text)
    if not words:
        return {}
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE VIRTUAL TABLE said USING fts5(text, episode UNINDEXED, turn UNINDEXED)")
        lines = index.lines(addresses)
        asked = list(lines)
        for at, line in enumerate(lines.values()):
            turns = enumerate(_turns(line))
            database.executemany("INSERT INTO said VALUES (?, ?, ?)", ((each, at, turn) for turn, each in turns))
        best: dict[Address, Snippet] = {}
        for joined in (" AND ".join(words), " OR ".join(words)):
            for at, turn, snippet in database.execute(_FOUND, (_BEGIN, _END, _TOKENS, joined)):
                stretches = re.split(f"[{_BEGIN}{_END}]", snippet)
                best.setdefault(asked[at], Snippet(turn, tuple(each[:_LONGEST] for each in stretches)))
    return best


def _turns(line: str) -> list[str]:
    """The texts of an episode, without the two characters that say where a hit begins and ends."""
    with suppress(ValueError, TypeError, KeyError, AttributeError):  # its file is just being written anew
        return [re.sub(f"[{_BEGIN}{_END}]", " ", turn) for turn in searched_turns(json.loads(line))]
    return []
