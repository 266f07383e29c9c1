"""What can be asked of each kind of entity: how to find it, how to ask, how to search for it, and where it stands.

A `Relation` leads from an entity to an `Answer`, which may be an entity itself; then other relations can follow, and
`chains.py` makes questions of several hops of them. A relation holds for an entity only where its answer is
unambiguous.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from agentgym_envs.worlds.searchqa.almanac.entities import E, Entity, Facts
from agentgym_envs.worlds.searchqa.almanac.words import number


@dataclass(frozen=True, slots=True)
class Answer:
    """What a relation leads to."""

    texts: tuple[str, ...]
    entity: Entity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation(Generic[E]):
    """One thing to ask of entities of one kind. In wordings `{x}` stands for the entity."""

    name: str
    kind: type[E]
    find: Callable[[Facts, E], Answer | None]
    leads: type[Entity] | None = None
    """The kind of entity it leads to; none where nothing can follow."""
    asks: tuple[str, ...]
    """The question, in several wordings."""
    nouns: tuple[str, ...] = ()
    """What it leads to as a part of a sentence."""
    query: str
    """What to add to the entity's name in a search."""
    aspect: str = ""
    """Which passage of the entity tells it: what its id ends in."""
    counts: bool = False
    """Whether the answer is how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description(Generic[E]):
    """A way to point at an entity by one of its facts instead of its name. `{v}` stands for the fact."""

    name: str
    kind: type[E]
    value: Callable[[Facts, E], str | None]
    asks: tuple[str, ...]
    nouns: tuple[str, ...]
    query: str
    aspect: str = ""


_UNSEARCHED = frozenset(
    {"a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of"}
    | {
        "on",
        "or",
        "such",
        "that",
        "the",
        "their",
        "then",
        "there",
        "these",
        "they",
        "this",
        "to",
        "was",
        "will",
        "with",
    }
)


def searchable(code: str) -> bool:
    """Whether no part of a code is one of the words that search engines pass over."""
    return _UNSEARCHED.isdisjoint(re.findall(r"\w+", code.lower()))


def literal(*texts: str | None) -> Answer | None:
    """An answer that is no entity; none where there is nothing to say."""
    known = tuple(dict.fromkeys(text for text in texts if text))
    return Answer(known) if known and texts[0] else None


def figure(value: int | None) -> Answer | None:
    """A number, with separators and without."""
    return None if value is None else literal(number(value), str(value))


def entity(facts: Facts, entity_id: str | None) -> Answer | None:
    """An entity; none where there is none, or no passage on it."""
    found = facts.entities.get(entity_id or "")
    return found and Answer(found.aliases, found)
