"""Relations of each kind of entity: how to find the answer, ask for it and search for it, and which passage states it.

A `Relation` leads from an entity to an `Answer`. If the answer is an entity too, further relations can follow;
`chains.py` combines them to questions of several hops. The rows are in `relations.json`, by kind and name; `find` and
`value` are the name of a function in `answers.py` and its arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from agentgym_envs.worlds.searchqa.almanac import answers, entities
from agentgym_envs.worlds.searchqa.almanac.answers import Answer
from agentgym_envs.worlds.searchqa.almanac.entities import Entity, Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A property to ask for of entities of one kind. In wordings `{x}` is replaced by the entity."""

    name: str
    kind: type[Entity]
    find: Callable[[Facts, Entity], Answer | None]
    leads: type[Entity] | None
    """The kind of entity it leads to; None if no relation can follow."""
    asks: Sequence[str]
    """The question, in several wordings."""
    nouns: Sequence[str] = ()
    """Noun phrases for the answer."""
    query: str
    """Keywords added to the entity's name in a query."""
    aspect: str = ""
    """The suffix of the id of the entity's passage that states the answer."""
    counts: bool = False
    """Whether the answer is a count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A reference to an entity by one of its facts instead of its name. `{v}` is replaced by the fact."""

    name: str
    kind: type[Entity]
    value: Callable[[Facts, Entity], str | None]
    asks: Sequence[str]
    nouns: Sequence[str]
    query: str
    aspect: str = ""


def kind_named(name: str) -> type[Entity]:
    """Return the class of entities with that name, such as `City`.

    Raises:
        AttributeError: if there is none.
    """
    return getattr(entities, name)


def _function(name: str, *arguments: Any) -> Callable[[Facts, Entity], Any]:
    """Return the function of `answers.py` with its last arguments given; AttributeError if there is none."""
    function = getattr(answers, name)
    return lambda facts, subject: function(facts, subject, *arguments)


def _relation(kind: str, name: str, *, find: Sequence[Any], leads: str | None = None, **row: Any) -> Relation:
    target = kind_named(leads) if leads else None
    return Relation(name=name, kind=kind_named(kind), find=_function(*find), leads=target, **row)


def _description(kind: str, name: str, *, value: Sequence[Any], **row: Any) -> Description:
    return Description(name=name, kind=kind_named(kind), value=_function(*value), **row)


_TABLE = json.loads(resources.files(__package__ or "").joinpath("relations.json").read_text(encoding="utf-8"))
RELATIONS = tuple(
    _relation(kind, name, **row) for kind, rows in _TABLE["relations"].items() for name, row in rows.items()
)
DESCRIPTIONS = tuple(
    _description(kind, name, **row) for kind, rows in _TABLE["descriptions"].items() for name, row in rows.items()
)
