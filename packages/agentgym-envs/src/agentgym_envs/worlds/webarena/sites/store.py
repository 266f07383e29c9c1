"""The finished sites: databases and tasks made at first use, kept on disk for all processes of this machine."""

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
_MAKERS = ("*.py", "*.sql", "*.txt")


@cache
def fingerprint() -> str:
    """Changes whenever a database or a task may: a hash of the code and texts they are made by."""
    sha = hashlib.sha256(sqlite3.sqlite_version.encode())
    for path in sorted(path for pattern in _MAKERS for path in _HERE.rglob(pattern)):
        sha.update(path.relative_to(_HERE).as_posix().encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()[:16]


@cache
def database(name: str) -> Path:
    """The file of a database as every episode begins with it. The first call on a machine takes some seconds.

    Two processes at once both make it, and write the same.
    """
    path = cache_folder("sites", fingerprint()) / f"{name}.sqlite"
    if not path.exists():
        write_whole(path, make_database(name))
    return path


def make_database(name: str) -> bytes:
    """The content of a database file: its schema, what its `data.fill` writes, the sessions of those signed in."""
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
        db.commit()
        db.execute("VACUUM")
        return db.serialize()
    finally:
        db.close()


@cache
def tasks() -> dict[str, list[dict[str, Any]]]:
    """The tasks of each split in WebArena's JSON shape, made from the databases."""
    path = cache_folder("sites", fingerprint()) / "tasks.json"
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):  # not made yet, or damaged
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
