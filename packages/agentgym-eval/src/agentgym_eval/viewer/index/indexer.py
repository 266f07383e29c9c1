"""Filling the index: the tables, and the incremental reading of files into them."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from agentgym_envs import Episode, Turn

from agentgym_eval.metrics.failure_causes import Distances, EpisodeKey, episode_key, failure_cause
from agentgym_eval.storage.attempts import AttemptKey, attempt_key, may_repeat
from agentgym_eval.storage.distances import distances_file, read_distances
from agentgym_eval.viewer.index.lines import read_line
from agentgym_eval.viewer.index.runs import EpisodeFile, path_key
from agentgym_eval.viewer.index.tokens import kept_episodes, tokens_file

VERSION = 18
"""Version of the tables, of the validation of lines and of failure causes: one of another version is never opened."""
SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS files (
    id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT UNIQUE, run TEXT, slug TEXT, part TEXT, step INTEGER, decoding TEXT,
    inode INTEGER, size INTEGER, mtime INTEGER, read INTEGER, lines INTEGER, tail TEXT, damaged INTEGER,
    repeated INTEGER, kept INTEGER);
CREATE INDEX IF NOT EXISTS files_run ON files (run, slug);
CREATE TABLE IF NOT EXISTS episodes (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER, number INTEGER, start INTEGER, length INTEGER,
    env TEXT, split TEXT, task TEXT, category TEXT, difficulty INTEGER, policy TEXT, sample INTEGER,
    turns INTEGER, invalid INTEGER, stop TEXT, score REAL, success INTEGER, cause TEXT, cause_turn INTEGER,
    tokens TEXT);
CREATE INDEX IF NOT EXISTS episodes_file ON episodes (file, number);
CREATE INDEX IF NOT EXISTS episodes_key ON episodes (file, task, sample, env);
CREATE TABLE IF NOT EXISTS tasks (
    file INTEGER, task TEXT, env TEXT, category TEXT, difficulty INTEGER, cluster TEXT, attempts INTEGER,
    failed INTEGER, successes REAL, scores REAL, turns REAL, first INTEGER,
    PRIMARY KEY (file, task, env)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counts (
    file INTEGER, facet TEXT, value, episodes INTEGER, PRIMARY KEY (file, facet, value)) WITHOUT ROWID;
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(text, content = '', prefix = '1');
"""
COUNTED = ("env", "split", "category", "difficulty", "policy", "stop")
"""Columns of `episodes` whose values are counted per file in `counts`; non-empty `cause` and `tokens` are, too."""
_ADD_TASK = """
INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    attempts = attempts + 1, failed = failed + excluded.failed, successes = successes + excluded.successes,
    scores = scores + excluded.scores, turns = turns + excluded.turns
"""
_COUNT_TASK = """
UPDATE tasks SET (attempts, failed, successes, scores, turns, first) = (
    SELECT count(*), total(stop = 'failed'), total(success), total(score), total(iif(stop = 'failed', 0, turns)),
        min(number) FROM episodes WHERE file = ?1 AND task = ?2 AND env = ?3)
WHERE file = ?1 AND task = ?2 AND env = ?3
"""
_UNCOUNT = "UPDATE counts SET episodes = episodes - ? WHERE file = ? AND facet = ? AND value = ?"
_BATCH = 500
_CACHE_KIB = 32_768
"""Memory for pages of the database: segments of words are merged in it."""
_TAIL = 1024


@dataclass(frozen=True, slots=True)
class _Line:
    start: int
    length: int
    episode: Episode | None
    """None if the line is damaged."""


@dataclass(frozen=True, slots=True)
class _Beside:
    """The files next to a file of episodes: its tokens file, and the expert's distances."""

    written: int
    """Sum of their modification times in ns, which changes with each of them; 0 if there are none."""
    with_tokens: Set[int]
    """Numbers of the episodes in the tokens file."""
    distances: Mapping[EpisodeKey, Distances]

    @classmethod
    def read(cls, episodes: Path) -> _Beside:
        tokens, distances = _mtime(tokens_file(episodes)), _mtime(distances_file(episodes))
        with_tokens = frozenset(kept_episodes(tokens_file(episodes))) if tokens else frozenset[int]()
        return cls(tokens + distances, with_tokens, read_distances(episodes) if distances else {})

    def cause(self, episode: Episode) -> tuple[str | None, int | None]:
        """Return the kind and the turn of an episode's failure cause; None for both if it has none."""
        cause = failure_cause(episode, distances=self.distances.get(episode_key(episode)))
        return (cause.kind, cause.turn) if cause else (None, None)


class Indexer:
    """Reads files into a database. Each batch is one transaction, so readers never see a partial batch."""

    def __init__(self, database: sqlite3.Connection) -> None:
        database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._database = database

    def remove_others(self, paths: Set[str | bytes]) -> None:
        """Remove the files that aren't among `paths`."""
        for file_id, path in self._database.execute("SELECT id, path FROM files").fetchall():
            if path not in paths:
                self._database.execute("BEGIN IMMEDIATE")
                self._remove(file_id)
                self._database.execute("COMMIT")

    def index_file(self, run: str, file: EpisodeFile) -> None:
        """Read the content of `file` that isn't indexed yet."""
        try:
            stat = file.path.stat()
        except FileNotFoundError:
            return  # deleted since the scan; the next refresh removes it
        known = self._database.execute("SELECT * FROM files WHERE path = ?", (path_key(file.path),)).fetchone()
        indexed = known and (known["size"], known["mtime"], known["inode"], known["run"], known["kept"])
        beside = _Beside.read(file.path)
        if indexed == (stat.st_size, stat.st_mtime_ns, stat.st_ino, run, beside.written):
            return
        with suppress(FileNotFoundError, PermissionError):
            while self._index_batch(run, file, beside):
                pass

    def _index_batch(self, run: str, file: EpisodeFile, beside: _Beside) -> bool:
        """Read the next lines of a file and return whether there may be more."""
        self._database.execute("BEGIN IMMEDIATE")  # another process may be filling the same index
        try:
            with file.path.open("rb") as content:
                stat = os.fstat(content.fileno())
                file_id, read, number = self._begin(run, file, beside.written, content, stat)
                lines = list(islice(_lines(content, read), _BATCH))
                end = lines[-1].start + lines[-1].length if lines else read
                tail = _tail(content, end)
            more = len(lines) == _BATCH
            # The size stays NULL until the whole file is read, so an interrupted file is continued by a later refresh.
            indexed = (None if more else stat.st_size, stat.st_mtime_ns)
            repeated = self._add(file_id, number, lines, beside, once=_has_attempts(file))
            self._database.execute(
                "UPDATE files SET size = ?, mtime = ?, read = ?, lines = lines + ?, tail = ?, damaged = damaged + ?, "
                "repeated = repeated + ? WHERE id = ?",
                (*indexed, end, len(lines), tail, sum(line.episode is None for line in lines), repeated, file_id),
            )
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
        return more

    def _begin(
        self, run: str, file: EpisodeFile, written: int, content: BinaryIO, stat: os.stat_result
    ) -> tuple[int, int, int]:
        """Return the file's id, the number of bytes read so far, and the number of lines read so far.

        The file is read from its start again if it was replaced, or if a file beside it was written since: a training
        step writes the tokens last, and an evaluation the distances.
        """
        known = self._database.execute("SELECT * FROM files WHERE path = ?", (path_key(file.path),)).fetchone()
        if known and (known["run"], known["kept"]) == (run, written) and _was_appended(known, stat, content):
            return known["id"], known["read"], known["lines"]
        if known:
            self._remove(known["id"])
        cursor = self._database.execute(
            "INSERT INTO files (path, run, slug, part, step, decoding, inode, read, lines, tail, damaged, "
            "repeated, kept) VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, ?, 0, 0, ?)",
            (
                *(path_key(file.path), run, file.slug, file.part, file.step, file.decoding),
                *(stat.st_ino, _tail(content, 0), written),
            ),
        )
        return cursor.lastrowid or 0, 0, 0

    def _remove(self, file_id: int) -> None:
        """Delete a file. Its words stay, but episode ids are never reused, so no search returns them."""
        for table in ("episodes", "tasks", "counts"):
            self._database.execute(f"DELETE FROM {table} WHERE file = ?", (file_id,))
        self._database.execute("DELETE FROM files WHERE id = ?", (file_id,))

    def _add(self, file_id: int, number: int, lines: Sequence[_Line], beside: _Beside, *, once: bool) -> int:
        """Add the episodes of lines of a file.

        Args:
            file_id: The file.
            number: Number of the first line, from 0.
            lines: The lines.
            beside: The files next to it.
            once: Whether only the last line with the same `attempt_key` counts.

        Returns:
            The number of lines that don't count because of these: earlier ones of the file, and some of their own.
        """
        row = self._database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'episodes'").fetchone()
        first = row[0] + 1 if row else 1
        valid = [(at, line, line.episode) for at, line in enumerate(lines) if line.episode is not None]
        last = {attempt_key(episode): at for at, _, episode in valid} if once else {}
        superseded = self._superseded(file_id, last) if once and number else []
        repeated = len(superseded)
        if once and len(last) < len(valid):
            repeated += len(valid) - len(last)
            valid = [(at, line, episode) for at, line, episode in valid if last[attempt_key(episode)] == at]
        tokens = {at: "kept" if number + at in beside.with_tokens else _sampled(episode) for at, _, episode in valid}
        causes = {at: beside.cause(episode) for at, _, episode in valid}
        self._database.executemany(
            f"INSERT INTO episodes VALUES ({', '.join('?' * 20)})",
            [
                (first + at, file_id, number + at, line.start, line.length, *_columns(episode), *causes[at], tokens[at])
                for at, line, episode in valid
            ],
        )
        self._database.executemany(
            "INSERT INTO words (rowid, text) VALUES (?, ?)",
            [(first + at, searchable_text(episode)) for at, _, episode in valid],
        )
        self._database.executemany(_ADD_TASK, [_task(file_id, number + at, episode) for at, _, episode in valid])
        counts = Counter((file_id, facet, getattr(episode, facet)) for *_, episode in valid for facet in COUNTED)
        counts.update((file_id, "tokens", value) for value in tokens.values() if value)
        counts.update((file_id, "cause", kind) for kind, _ in causes.values() if kind)
        self._database.executemany(
            "INSERT INTO counts VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET episodes = episodes + excluded.episodes",
            [(*key, number) for key, number in counts.items()],
        )
        self._withdraw(file_id, superseded)
        return repeated

    def _superseded(self, file_id: int, keys: Iterable[AttemptKey]) -> list[sqlite3.Row]:
        """Return the rows of a file's episodes with these keys."""
        query = "SELECT * FROM episodes WHERE file = ? AND task = ? AND sample = ? AND env = ? AND policy = ?"
        every = ((file_id, task, sample, env, policy) for policy, (env, task, sample) in keys)
        found = (self._database.execute(query, key).fetchone() for key in every)
        return [row for row in found if row is not None]

    def _withdraw(self, file_id: int, rows: Sequence[sqlite3.Row]) -> None:
        """Delete episodes of a file, after the ones that count instead were added."""
        self._database.executemany("DELETE FROM episodes WHERE id = ?", [(row["id"],) for row in rows])
        counts = Counter((facet, row[facet]) for row in rows for facet in (*COUNTED, "tokens", "cause"))
        counted = [at for at in counts.items() if at[0][1] != "" or at[0][0] in COUNTED]
        self._database.executemany(_UNCOUNT, [(number, file_id, facet, value) for (facet, value), number in counted])
        self._database.execute("DELETE FROM counts WHERE file = ? AND episodes <= 0", (file_id,))
        tasks = {(file_id, row["task"], row["env"]) for row in rows}
        self._database.executemany(_COUNT_TASK, sorted(tasks))


def _has_attempts(file: EpisodeFile) -> bool:
    """Return whether several lines of a file with the same `attempt_key` are one attempt."""
    return file.part in ("played", "evaluation") and not may_repeat(file.path)


def _was_appended(known: sqlite3.Row, stat: os.stat_result, content: BinaryIO) -> bool:
    """Return whether the file still begins with the bytes that were read."""
    same = known["inode"] == stat.st_ino and known["read"] <= stat.st_size
    return same and known["tail"] == _tail(content, known["read"])


def _lines(content: BinaryIO, start: int) -> Iterator[_Line]:
    """Yield the complete lines from `start` on; a last line without a line break counts if it is a valid episode."""
    content.seek(start)
    for line in content:
        terminated = line.endswith(b"\n")
        episode = read_line(line)
        if line.strip() and (terminated or episode is not None):
            yield _Line(start, len(line), episode)
        start += len(line)


def _columns(episode: Episode) -> tuple[Any, ...]:
    """Return the columns of an episode in the table `episodes`, from `env` on."""
    valid = [turn.valid for turn in _own_acts(episode)]
    return (
        *(episode.env, episode.split, episode.task_id, episode.category, episode.difficulty, episode.policy),
        *(episode.sample, len(valid), valid.count(False), episode.stop, episode.score, episode.success),
    )


def _own_acts(episode: Episode) -> list[Turn]:
    """Return the turns that `Episode.acts` counts: the policy's, without habits and an expert's turns before them."""
    return [turn for turn in episode.turns if turn.kind == "act" and not turn.reply.expert]


def _sampled(episode: Episode) -> str:
    """Return `sampled` if the episode has token ids, otherwise an empty string."""
    return "sampled" if any(turn.reply.sample for turn in episode.turns) else ""


def _mtime(path: Path) -> int:
    """Return the modification time of a file in ns; 0 if it doesn't exist."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _task(file_id: int, number: int, episode: Episode) -> tuple[Any, ...]:
    """Return what an attempt adds to its task's row; a failed attempt adds only to the count of failures."""
    names = (episode.task_id, episode.env, episode.category, episode.difficulty, episode.cluster)
    turns = len(_own_acts(episode))
    sums = (0, 0, 0) if episode.failed else (episode.success or 0, episode.score or 0, turns)
    return file_id, *names, episode.failed, *sums, number


def searchable_text(episode: Episode) -> str:
    """Return the observations and replies of an episode as one text."""
    return "\n".join(searchable_turns(episode))


def searchable_turns(episode: Episode) -> list[str]:
    """Return the text of each turn and of the end; an observation equal to the previous one is left out."""
    texts: list[str] = []
    previous = None
    for turn in episode.turns:
        observation = [turn.observation] if turn.observation != previous else []
        previous = turn.observation
        reasoning = turn.reply.reasoning
        texts.append("\n".join((*observation, *([reasoning] if reasoning else []), turn.reply.text)))
    return [*texts, episode.final_observation]


def _tail(content: BinaryIO, end: int) -> str:
    """Hash the last bytes before `end`, to detect that a file was replaced."""
    start = max(0, end - _TAIL)
    content.seek(start)
    return hashlib.sha256(content.read(end - start)).hexdigest()[:16]
