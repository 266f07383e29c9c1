"""How the index fills: tables, and files read into them line by line from where they were read to."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from agentgym_eval.viewer.index.lines import read_line
from agentgym_eval.viewer.index.runs import EpisodeFile
from agentgym_eval.viewer.index.tokens import kept_episodes, tokens_file

VERSION = 9
"""Of the tables and of what is let into them: an index of another version is never opened."""
SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS files (
    id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT UNIQUE, run TEXT, slug TEXT, part TEXT, step INTEGER, manner TEXT,
    inode INTEGER, size INTEGER, mtime INTEGER, read INTEGER, lines INTEGER, tail TEXT, damaged INTEGER,
    kept INTEGER);
CREATE INDEX IF NOT EXISTS files_run ON files (run, slug);
CREATE TABLE IF NOT EXISTS episodes (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER, number INTEGER, start INTEGER, length INTEGER,
    env TEXT, split TEXT, task TEXT, category TEXT, difficulty INTEGER, policy TEXT, sample INTEGER,
    turns INTEGER, invalid INTEGER, stop TEXT, score REAL, success INTEGER, tokens TEXT);
CREATE INDEX IF NOT EXISTS episodes_file ON episodes (file, number);
CREATE TABLE IF NOT EXISTS tasks (
    file INTEGER, task TEXT, env TEXT, category TEXT, difficulty INTEGER, cluster TEXT, attempts INTEGER,
    failed INTEGER, successes REAL, scores REAL, turns REAL, first INTEGER,
    PRIMARY KEY (file, task, env)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counts (
    file INTEGER, facet TEXT, value, episodes INTEGER, PRIMARY KEY (file, facet, value)) WITHOUT ROWID;
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(text, content = '', prefix = '1 2 3');
"""
COUNTED = ("env", "split", "category", "difficulty", "policy", "stop")
"""Columns of `episodes` whose values `counts` counts in every file, and beside them `tokens` where that is known."""
_ADD_TASK = """
INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    attempts = attempts + 1, failed = failed + excluded.failed, successes = successes + excluded.successes,
    scores = scores + excluded.scores, turns = turns + excluded.turns
"""
_BATCH = 500
_TAIL = 1024


@dataclass(frozen=True, slots=True)
class _Line:
    start: int
    length: int
    record: dict[str, Any] | None
    """None where the line is damaged."""


class Filler:
    """Takes files into a database. One batch is one transaction, so readers see it grow and never see half of it."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def forget_others(self, paths: set[str]) -> None:
        """Remove the files that aren't among `paths`."""
        for identity, path in self._database.execute("SELECT id, path FROM files").fetchall():
            if path not in paths:
                self._database.execute("BEGIN IMMEDIATE")
                self._forget(identity)
                self._database.execute("COMMIT")

    def take_in(self, run: str, file: EpisodeFile) -> None:
        """Read what `file` has that the index lacks."""
        try:
            stat = file.path.stat()
        except FileNotFoundError:
            return  # gone since it was found; the next look forgets it
        known = self._database.execute("SELECT * FROM files WHERE path = ?", (str(file.path),)).fetchone()
        seen = known and (known["size"], known["mtime"], known["inode"], known["run"], known["kept"])
        kept = _written(tokens_file(file.path))
        if seen == (stat.st_size, stat.st_mtime_ns, stat.st_ino, run, kept):
            return
        numbers = frozenset(kept_episodes(tokens_file(file.path))) if kept else frozenset[int]()
        with suppress(FileNotFoundError, PermissionError):
            while self._batch(run, file, kept, numbers):
                pass

    def _batch(self, run: str, file: EpisodeFile, kept: int, numbers: Set[int]) -> bool:
        """Read some lines on, whose tokens are kept of `numbers`; whether there may be more."""
        self._database.execute("BEGIN IMMEDIATE")  # another process may be filling the same index
        try:
            with file.path.open("rb") as content:
                stat = os.fstat(content.fileno())
                identity, read, number = self._begin(run, file, kept, content, stat)
                lines = list(islice(_lines(content, read), _BATCH))
                end = lines[-1].start + lines[-1].length if lines else read
                tail = _tail(content, end)
            more = len(lines) == _BATCH
            # While there is more no size is known, so that a file of which the reading ends here is read on some day.
            seen = (None if more else stat.st_size, stat.st_mtime_ns)
            self._add(identity, number, lines, numbers)
            self._database.execute(
                "UPDATE files SET size = ?, mtime = ?, read = ?, lines = lines + ?, tail = ?, damaged = damaged + ? "
                "WHERE id = ?",
                (*seen, end, len(lines), tail, sum(line.record is None for line in lines), identity),
            )
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
        return more

    def _begin(
        self, run: str, file: EpisodeFile, kept: int, content: BinaryIO, stat: os.stat_result
    ) -> tuple[int, int, int]:
        """The file's row, up to which byte it was read, and how many lines that were. A file whose tokens were written
        since, which a training step does last, is read anew.
        """
        known = self._database.execute("SELECT * FROM files WHERE path = ?", (str(file.path),)).fetchone()
        if known and (known["run"], known["kept"]) == (run, kept) and _went_on(known, stat, content):
            return known["id"], known["read"], known["lines"]
        if known:
            self._forget(known["id"])
        made = self._database.execute(
            "INSERT INTO files (path, run, slug, part, step, manner, inode, read, lines, tail, damaged, kept) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, ?, 0, ?)",
            (str(file.path), run, file.slug, file.part, file.step, file.manner, stat.st_ino, _tail(content, 0), kept),
        )
        return made.lastrowid or 0, 0, 0

    def _forget(self, identity: int) -> None:
        """Drop a file. Its words stay: no episode is ever given their number again, so nothing finds them."""
        for table in ("episodes", "tasks", "counts"):
            self._database.execute(f"DELETE FROM {table} WHERE file = ?", (identity,))
        self._database.execute("DELETE FROM files WHERE id = ?", (identity,))

    def _add(self, identity: int, number: int, lines: Sequence[_Line], kept: Set[int]) -> None:
        row = self._database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'episodes'").fetchone()
        first = row[0] + 1 if row else 1
        good = [(at, line, line.record) for at, line in enumerate(lines) if line.record is not None]
        tokens = {at: "kept" if number + at in kept else _sampled(record) for at, _, record in good}
        self._database.executemany(
            f"INSERT INTO episodes VALUES ({', '.join('?' * 18)})",
            [
                (first + at, identity, number + at, line.start, line.length, *_figures(record), tokens[at])
                for at, line, record in good
            ],
        )
        self._database.executemany(
            "INSERT INTO words (rowid, text) VALUES (?, ?)", [(first + at, searched(record)) for at, _, record in good]
        )
        self._database.executemany(_ADD_TASK, [_task(identity, number + at, record) for at, _, record in good])
        counts = Counter((identity, facet, record[facet]) for *_, record in good for facet in COUNTED)
        counts.update((identity, "tokens", known) for known in tokens.values() if known)
        self._database.executemany(
            "INSERT INTO counts VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET episodes = episodes + excluded.episodes",
            [(*key, number) for key, number in counts.items()],
        )


def _went_on(known: sqlite3.Row, stat: os.stat_result, content: BinaryIO) -> bool:
    """Whether what was read of a file is still what it begins with."""
    same = known["inode"] == stat.st_ino and known["read"] <= stat.st_size
    return same and known["tail"] == _tail(content, known["read"])


def _lines(content: BinaryIO, start: int) -> Iterator[_Line]:
    """The whole lines from `start` on. One without a line break counts when it is whole JSON: the file's last."""
    content.seek(start)
    for line in content:
        whole = line.endswith(b"\n")
        record = read_line(line)
        if line.strip() and (whole or record is not None):
            yield _Line(start, len(line), record)
        start += len(line)


def _figures(record: dict[str, Any]) -> tuple[Any, ...]:
    """What the table of episodes holds of one, from `env` on."""
    acts = [turn for turn in record["turns"] if turn.get("kind", "act") == "act"]
    return (
        *(record[name] for name in ("env", "split", "task_id", "category", "difficulty", "policy", "sample")),
        len(acts),
        sum(not turn["valid"] for turn in acts),
        *(record[name] for name in ("stop", "score", "success")),
    )


def _sampled(record: dict[str, Any]) -> str:
    """`sampled` where the record has the ids of tokens."""
    return "sampled" if any(turn["reply"].get("sample") for turn in record["turns"]) else ""


def _written(path: Path) -> int:
    """When a file was last written; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _task(identity: int, number: int, record: dict[str, Any]) -> tuple[Any, ...]:
    """What an attempt adds to its task's sums; a failed one to none but the number of failed ones."""
    env, _, task, category, difficulty, _, _, turns, _, stop, score, success = _figures(record)
    failed = stop == "failed"
    sums = (0, 0, 0) if failed else (success or 0, score or 0, turns)
    return identity, task, env, category, difficulty, record.get("cluster", ""), failed, *sums, number


def searched(record: dict[str, Any]) -> str:
    """What was said and shown, as one text."""
    return "\n".join(searched_turns(record))


def searched_turns(record: dict[str, Any]) -> list[str]:
    """What was said and shown in each turn, and at the end; an observation only where it is another than before."""
    said: list[str] = []
    shown = None
    for turn in record["turns"]:
        new = [turn["observation"]] if turn["observation"] != shown else []
        shown = turn["observation"]
        reasoning = turn["reply"].get("reasoning")
        said.append("\n".join((*new, *([reasoning] if reasoning else []), turn["reply"]["text"])))
    said.append(record["final_observation"])
    return [text.encode(errors="replace").decode() for text in said]


def _tail(content: BinaryIO, end: int) -> str:
    """A hash of the bytes before `end`: of a file that was replaced they are others."""
    start = max(0, end - _TAIL)
    content.seek(start)
    return hashlib.sha256(content.read(end - start)).hexdigest()[:16]
