"""Relations of each kind of entity: how to find the answer, ask for it and search for it, and which passage states it.

A `Relation` leads from an entity to an `Answer`. If the answer is an entity too, further relations can follow;
`chains.py` combines them to questions of several hops. A relation has no answer where it would be ambiguous.
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
    """The answer of a relation: its accepted texts, and the entity if it is one."""

    texts: tuple[str, ...]
    entity: Entity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation(Generic[E]):
    """A property to ask for of entities of one kind. In wordings `{x}` is replaced by the entity."""

    name: str
    kind: type[E]
    find: Callable[[Facts, E], Answer | None]
    leads: type[Entity] | None = None
    """The kind of entity it leads to; None if no relation can follow."""
    asks: tuple[str, ...]
    """The question, in several wordings."""
    nouns: tuple[str, ...] = ()
    """Noun phrases for the answer."""
    query: str
    """Keywords added to the entity's name in a query."""
    aspect: str = ""
    """The suffix of the id of the entity's passage that states the answer."""
    counts: bool = False
    """Whether the answer is a count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description(Generic[E]):
    """A reference to an entity by one of its facts instead of its name. `{v}` is replaced by the fact."""

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
    """Whether no part of a code is a stop word of search engines."""
    return _UNSEARCHED.isdisjoint(re.findall(r"\w+", code.lower()))


def literal(*texts: str | None) -> Answer | None:
    """Return an answer that isn't an entity; None if the first text is missing."""
    known = tuple(dict.fromkeys(text for text in texts if text))
    return Answer(known) if known and texts[0] else None


def figure(value: int | None) -> Answer | None:
    """Return a number as an answer, with and without separators."""
    return None if value is None else literal(number(value), str(value))


def entity(facts: Facts, entity_id: str | None) -> Answer | None:
    """Return an entity as an answer; None if it isn't in the almanac."""
    found = facts.entities.get(entity_id or "")
    return found and Answer(found.aliases, found)
