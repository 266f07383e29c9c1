"""Databases and tasks of the sites, generated on first use and cached on disk for all processes of this machine."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from agentgym_envs.util.files import cache_folder, write_whole
from agentgym_envs.worlds.webarena.sites.directory import PLACES, databases

_HERE = Path(__file__).parent
_CONTENT_VIEWS = "SELECT name FROM sqlite_master WHERE type = 'view' AND name GLOB '*_contents' ORDER BY name"
_MAKERS = ("*.py", "*.sql", "*.txt")


@cache
def fingerprint() -> str:
    """Return a hash of the code and texts that databases and tasks are generated from; it is their cache key."""
    sha = hashlib.sha256(sqlite3.sqlite_version.encode())
    for path in sorted(path for pattern in _MAKERS for path in _HERE.rglob(pattern)):
        sha.update(path.relative_to(_HERE).as_posix().encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()[:16]


@cache
def database(name: str) -> Path:
    """Return the path of a database as every episode starts with it. The first call on a machine takes some seconds.

    Two concurrent processes may both generate it; they write identical files.
    """
    path = cache_folder("sites", fingerprint()) / f"{name}.sqlite"
    if not path.exists():
        write_whole(path, make_database(name))
    return path


def make_database(name: str) -> bytes:
    """Return the bytes of a database file: schema, the rows of `data.fill`, signed-in sessions, initial rows."""
    db = sqlite3.connect(":memory:")
    try:
        db.executescript((_HERE / name / "schema.sql").read_text(encoding="utf-8"))
        import_module(f"agentgym_envs.worlds.webarena.sites.{name}.data").fill(db, Random(f"sites/{name}"))
        accounts = [place.account for place in PLACES.values() if place.database == name and place.account]
        if accounts:
            db.execute("CREATE TABLE sessions (id TEXT PRIMARY KEY, account INTEGER NOT NULL REFERENCES accounts (id))")
        for account in accounts:
            db.execute(
                "INSERT INTO sessions SELECT ?, id FROM accounts WHERE name = ? AND password = ?",
                (account.session, account.name, account.password),
            )
        _keep_initial_rows(db, name)
        db.commit()
        db.execute("VACUUM")
        return db.serialize()
    finally:
        db.close()


def _keep_initial_rows(db: sqlite3.Connection, name: str) -> None:
    """Copy each view `X_contents` of `contents.sql` to a table `initial_X_contents`, which judges compare it with."""
    contents = _HERE / name / "contents.sql"
    if contents.exists():
        db.executescript(contents.read_text(encoding="utf-8"))
        for (view,) in db.execute(_CONTENT_VIEWS).fetchall():
            db.execute(f"CREATE TABLE initial_{view} AS SELECT * FROM {view}")


@cache
def tasks() -> dict[str, list[dict[str, Any]]]:
    """Return the tasks of each split in WebArena's JSON format, generated from the databases."""
    path = cache_folder("sites", fingerprint()) / "tasks.json"
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):  # not generated yet, or damaged
        from agentgym_envs.worlds.webarena.sites.tasks import make_tasks

        opened = {name: _reader(database(name)) for writable in (True, False) for name in databases(writable=writable)}
        made = make_tasks(opened)
        for db in opened.values():
            db.close()
        write_whole(path, json.dumps(made, ensure_ascii=False, separators=(",", ":")))
        return made


def _reader(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    db.row_factory = sqlite3.Row
    return db
