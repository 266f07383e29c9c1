"""The episodes before and after an episode in a filtered, sorted list.

The ordered ids of the last lists are kept, so going through a list of 100,000 episodes sorts it once, not at each step.
"""

from __future__ import annotations

import sqlite3
import threading
from array import array
from dataclasses import dataclass, replace

from agentgym_eval.viewer.index.links import Address
from agentgym_eval.viewer.index.queries import Filters, find_row, ordered_ids, rows_by_id

_MAX_LISTS = 8


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The position of an episode in a list."""

    filters: Filters
    """The filters and the order of the list, with the page that shows the episode."""
    previous: Address | None
    next: Address | None
    position: int | None
    """From 1; None if the episode doesn't match the filters (any more)."""
    total: int
    """The number of episodes that match."""


class NeighbourFinder:
    """Finds neighbours; thread-safe."""

    def __init__(self) -> None:
        self._lists: dict[Filters, tuple[str, array[int]]] = {}
        self._lock = threading.Lock()

    def find(self, database: sqlite3.Connection, version: str, filters: Filters, address: Address) -> Neighbours | None:
        """Return the neighbours of an episode; None if it doesn't exist. An episode that doesn't match `filters` is
        between the matching ones where its values sort it.

        Args:
            database: The index.
            version: Its version, which changes with its content.
            filters: The filters and the order of the list.
            address: The episode.
        """
        record = find_row(database, address)
        if record is None:
            return None
        ids = matching = self._ids(database, version, replace(filters, page=1))
        at = _position(ids, record["id"])
        if at is None:
            ids = ordered_ids(database, filters, record["id"])
            at = _position(ids, record["id"])
            if at is None:
                return None  # deleted in the meantime
        around = [ids[each] if 0 <= each < len(ids) else 0 for each in (at - 1, at + 1)]
        rows = rows_by_id(database, around)
        before, after = (rows[each].address if each in rows else None for each in around)
        page = max(0, min(at, len(matching) - 1)) // filters.size + 1
        position = at + 1 if ids is matching else None
        return Neighbours(replace(filters, page=page), before, after, position, len(matching))

    def _ids(self, database: sqlite3.Connection, version: str, filters: Filters) -> array[int]:
        known = self._lists.get(filters)
        if known and known[0] == version:
            return known[1]
        ids = ordered_ids(database, filters)
        with self._lock:
            self._lists.pop(filters, None)
            while len(self._lists) >= _MAX_LISTS:
                del self._lists[next(iter(self._lists))]
            self._lists[filters] = version, ids
        return ids


def _position(ids: array[int], row_id: int) -> int | None:
    try:
        return ids.index(row_id)
    except ValueError:
        return None
