"""The replies of a paid endpoint on disk, each written and flushed as it comes, so that none is paid for twice.

When an episode is begun again, in another sitting or after a fault, its replies come from here as long as the requests
are the same; then the endpoint is asked. Knows neither endpoints nor what a request looks like.
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

_KEYS = ("task", "sample", "number", "request", "reply")
_Job = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reply belongs."""

    attempt: int
    """The same for all requests of one attempt at an episode, and for no other; it isn't written."""
    task: str
    sample: int
    request: str
    """Hash of all that was sent."""

    @property
    def job(self) -> _Job:
        """Task and number of the sample."""
        return self.task, self.sample


class Journal:
    """The file `replies.jsonl` of one run: a JSON line for each reply. One process at a time writes it."""

    def __init__(self, path: Path, begin: Callable[[], None]) -> None:
        """Nothing is read or written yet.

        Args:
            path: The file; made with the first reply.
            begin: Called before the first reply of this sitting is written.
        """
        self._path, self._begin = path, begin
        self._file: IO[bytes] | None = None
        self._replies: defaultdict[_Job, defaultdict[str, list[Reply]]] = defaultdict(lambda: defaultdict(list))
        self._earlier = Counter[_Job]()  # replies of earlier sittings
        self._used: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self.usage = Usage()
        """Of all replies, in all sittings."""
        self.diverged = set[_Job]()
        """Episodes that took another course than in an earlier sitting, so that some of its replies are of no use."""

    def read(self) -> None:
        """Take up what earlier sittings left.

        Raises:
            ValueError: when a line is damaged; the message has its number.
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
        """The next reply to this request that the attempt has not had yet; None when there is none."""
        used, known = self._used[place.attempt], self._replies[place.job][place.request]
        if used[place.request] == len(known):
            return None
        used[place.request] += 1
        return known[used[place.request] - 1]

    def keep(self, place: Place, reply: Reply) -> None:
        """Add a reply that has just come; it survives the process from here on.

        Raises:
            OSError: when it can't be written.
        """
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
        """The attempt has ended. Another one at the same episode gets the same replies again."""
        self._used.pop(attempt, None)

    def done(self, task: str, sample: int) -> None:
        """The episode is kept, so that its replies are not needed any more."""
        self._replies.pop((task, sample), None)

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):  # what could not be written has been told by `keep`
                file.close()


def _read(record: Any) -> tuple[str, int, str, Reply]:
    if not isinstance(record, dict) or record.keys() != set(_KEYS):
        raise ValueError(f"This is no reply of an endpoint, which has the keys {', '.join(_KEYS)}.")
    task, sample, request = record["task"], record["sample"], record["request"]
    if not (isinstance(task, str) and type(sample) is int and isinstance(request, str)):
        raise ValueError("`task` and `request` are text, and `sample` is a whole number.")
    return task, sample, request, Reply.from_dict(record["reply"])
