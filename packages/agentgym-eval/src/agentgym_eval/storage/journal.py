"""A journal of paid endpoint replies, flushed to disk as each one arrives so that no request is paid for twice.

When an episode is restarted, in a later session or after a fault, its replies are replayed from the journal for as long
as the requests are identical; after that, requests go to the endpoint. This module depends neither on endpoints nor on
the format of a request.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from agentgym_envs import Reply
from agentgym_envs.util.json_text import parse

from agentgym_eval.metrics.usage import Usage
from agentgym_eval.storage.lock import check_lock

_KEYS = ("task", "sample", "number", "request", "reply")
_Job = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Place:
    """The episode attempt and request that a reply belongs to."""

    attempt: int
    """Number that is unique to one attempt at an episode; it isn't written to disk."""
    task: str
    sample: int
    request: str
    """Hash of the complete request."""

    @property
    def job(self) -> _Job:
        """Task id and sample number."""
        return self.task, self.sample


class Journal:
    """The file `replies.jsonl` of one run: one JSON line per reply, written by one process at a time."""

    def __init__(self, path: Path, begin: Callable[[], None]) -> None:
        """Create the journal without reading or writing anything.

        Args:
            path: The file; created with the first reply.
            begin: Called before the first reply of this session is written.
        """
        self._path, self._begin = path, begin
        self._file: IO[bytes] | None = None
        self._replies: defaultdict[_Job, defaultdict[str, list[Reply]]] = defaultdict(lambda: defaultdict(list))
        self._earlier = Counter[_Job]()  # number of replies from earlier sessions
        self._used: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self.usage = Usage()
        """Total usage of all replies, over all sessions."""
        self.diverged = set[_Job]()
        """Episodes that diverged from an earlier session, so that some of their recorded replies are unusable."""

    def read(self) -> None:
        """Load the replies of earlier sessions.

        Raises:
            ValueError: If a line is damaged; the message has its number.
        """
        if not self._path.exists():
            return
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    record = parse(line.decode())
                    task, sample, request, reply = _read(record)
                except ValueError as error:
                    raise ValueError(f"{self._path}, line {number}: {error}") from error
                self._replies[task, sample][request].append(reply)
                self._earlier[task, sample] += 1
                self.usage += Usage.of(reply.usage)

    def replay(self, place: Place) -> Reply | None:
        """Return the next recorded reply to this request that the attempt has not used yet; None if there is none."""
        used, known = self._used[place.attempt], self._replies[place.job][place.request]
        if used[place.request] == len(known):
            return None
        used[place.request] += 1
        return known[used[place.request] - 1]

    def keep(self, place: Place, reply: Reply) -> None:
        """Append a new reply and flush it, so that it survives the process.

        Raises:
            OSError: If it can't be written.
            LockLost: If another process has taken the folder over; nothing is written.
        """
        check_lock(self._path)
        used = self._used[place.attempt]
        if used.total() < self._earlier[place.job]:
            self.diverged.add(place.job)
        if self._file is None:
            self._begin()
            self._file = self._path.open("ab")
        values = (place.task, place.sample, used.total(), place.request, reply.to_dict())
        line = json.dumps(dict(zip(_KEYS, values, strict=True)), ensure_ascii=False, separators=(",", ":"))
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        self.usage += Usage.of(reply.usage)
        self._replies[place.job][place.request].append(reply)
        used[place.request] += 1

    def leave(self, attempt: int) -> None:
        """Forget an attempt that has ended. Another attempt at the same episode replays the same replies."""
        self._used.pop(attempt, None)

    def done(self, task: str, sample: int) -> None:
        """Drop the replies of an episode that has been stored and won't be replayed."""
        self._replies.pop((task, sample), None)

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):  # `keep` has already raised for data that could not be written
                file.close()


def _read(record: Any) -> tuple[str, int, str, Reply]:
    if not isinstance(record, dict) or record.keys() != set(_KEYS):
        raise ValueError(f"This is not a recorded reply: expected exactly the keys {', '.join(_KEYS)}.")
    task, sample, request = record["task"], record["sample"], record["request"]
    if not (isinstance(task, str) and type(sample) is int and isinstance(request, str)):
        raise ValueError("`task` and `request` must be strings, and `sample` must be an integer.")
    return task, sample, request, Reply.from_dict(record["reply"])
