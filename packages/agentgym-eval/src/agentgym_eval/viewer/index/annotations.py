"""Annotations in the index: tables that mirror the files of annotations, and their queries."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from agentgym_eval.storage.annotations import annotations_file, read_annotations
from agentgym_eval.viewer.index.runs import path_key

ANNOTATED, NOT_ANNOTATED = "*", "!*"
"""Values of the filter for labels: episodes with any annotation, and without one. No label begins like them."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS annotation_files (path TEXT PRIMARY KEY, stamp TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS annotations (
    id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT, number INTEGER, env TEXT, task TEXT, sample INTEGER,
    labels TEXT, note TEXT, written TEXT);
CREATE UNIQUE INDEX IF NOT EXISTS annotations_episode ON annotations (path, number);
CREATE TABLE IF NOT EXISTS labels (label TEXT, annotation INTEGER, PRIMARY KEY (label, annotation)) WITHOUT ROWID;
CREATE VIRTUAL TABLE IF NOT EXISTS notes USING fts5(text);
"""
SAME = "a.path = f.path AND a.number = e.number AND a.env = e.env AND a.task = e.task AND a.sample = e.sample"
"""The condition under which the annotation `a` belongs to the episode `e` in the file `f`. The task is part of it,
since the file may have been replaced by one with other episodes.
"""
_EPISODES = (
    f"SELECT e.id FROM annotations a JOIN files f ON f.path = a.path JOIN episodes e ON e.file = f.id AND {SAME}"
)
WITH_ANY = f"e.id IN ({_EPISODES})"
WITHOUT = f"e.id NOT IN ({_EPISODES})"
WITH_LABEL = f"e.id IN ({_EPISODES} JOIN labels l ON l.annotation = a.id WHERE l.label = ?)"
MATCHING = f"{_EPISODES} WHERE a.id IN (SELECT rowid FROM notes WHERE notes MATCH ?)"
_MAX_LABELS = 100


def update_annotations(database: sqlite3.Connection, paths: Iterable[Path]) -> None:
    """Read the annotations of files of episodes, where they have changed, and remove those of all other files."""
    known = dict(database.execute("SELECT path, stamp FROM annotation_files"))
    for path in paths:
        known_stamp = known.pop(path_key(path), "")
        if _stamp(path) != known_stamp:
            update_file(database, path)
    for path in known:
        database.execute("BEGIN IMMEDIATE")
        _remove(database, path)
        database.execute("COMMIT")


def update_file(database: sqlite3.Connection, episodes: Path) -> None:
    """Read the annotations of a file of episodes again, as one transaction."""
    database.execute("BEGIN IMMEDIATE")
    try:
        stamp, found = _stamp(episodes), read_annotations(episodes)
        _remove(database, path_key(episodes))
        if stamp:
            database.execute("INSERT INTO annotation_files VALUES (?, ?)", (path_key(episodes), stamp))
        for number, ((env, task, sample), annotation) in found.items():
            values = (env, task, sample, json.dumps(annotation.labels), annotation.note, annotation.written)
            row = database.execute(
                "INSERT INTO annotations (path, number, env, task, sample, labels, note, written) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (path_key(episodes), number, *values),
            ).lastrowid
            database.executemany(
                "INSERT OR IGNORE INTO labels VALUES (?, ?)", [(each, row) for each in annotation.labels]
            )
            text = "\n".join((*annotation.labels, annotation.note))
            database.execute("INSERT INTO notes (rowid, text) VALUES (?, ?)", (row, text))
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def used_labels(database: sqlite3.Connection, run: str) -> list[tuple[str, int]]:
    """Return the labels of the episodes of a run, or of all, with their counts: at most 100, the most frequent ones."""
    rows = database.execute(
        f"SELECT l.label, count(*) FROM annotations a JOIN files f ON f.path = a.path JOIN episodes e ON e.file = f.id "
        f"AND {SAME} JOIN labels l ON l.annotation = a.id WHERE ? IN ('', f.run) "
        "GROUP BY l.label ORDER BY count(*) DESC, l.label LIMIT ?",
        (run, _MAX_LABELS),
    )
    return [(label, count) for label, count in rows]


def any_annotation(database: sqlite3.Connection) -> bool:
    """Return whether there is an annotation of any episode."""
    return bool(database.execute("SELECT EXISTS (SELECT 1 FROM annotations)").fetchone()[0])


def _remove(database: sqlite3.Connection, path: str | bytes) -> None:
    for table, column in (("notes", "rowid"), ("labels", "annotation")):
        ids = "SELECT id FROM annotations WHERE path = ?"
        database.execute(f"DELETE FROM {table} WHERE {column} IN ({ids})", (path,))
    for table in ("annotations", "annotation_files"):
        database.execute(f"DELETE FROM {table} WHERE path = ?", (path,))


def _stamp(episodes: Path) -> str:
    """Return a string that changes with the annotations of a file; empty if there are none."""
    try:
        stat = annotations_file(episodes).stat()
    except OSError:
        return ""
    return f"{stat.st_ino} {stat.st_size} {stat.st_mtime_ns}"
