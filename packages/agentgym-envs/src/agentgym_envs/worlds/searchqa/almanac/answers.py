"""The functions that find answers, which the rows of `relations.json` name.

The first two arguments of each function are the facts and an entity; further arguments are in the row. The functions of
relations return an `Answer`, those of descriptions a text. They return None if there is no answer or it is ambiguous.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from agentgym_envs.worlds.searchqa.almanac.entities import (
    City,
    Country,
    County,
    Entity,
    Facts,
    State,
    Subdivision,
    Zone,
)
from agentgym_envs.worlds.searchqa.almanac.words import number, ordinal

_UNSEARCHED = frozenset((
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a relation: its accepted texts, and the entity if it is one."""

    texts: tuple[str, ...]
    entity: Entity | None = None


def searchable(code: str) -> bool:
    """Whether no part of a code is a stop word of search engines."""
    return _UNSEARCHED.isdisjoint(re.findall(r"\w+", code.lower()))


def _literal(*texts: str | None) -> Answer | None:
    """Return an answer that isn't an entity; None if the first text is missing."""
    known = tuple(dict.fromkeys(text for text in texts if text))
    return Answer(known) if known and texts[0] else None


def _figure(value: int, least: int = 0) -> Answer | None:
    """Return a number as an answer, with and without separators; None if it is less than `least`."""
    return None if value < least else _literal(number(value), str(value))


def _entity(facts: Facts, entity_id: str | None) -> Answer | None:
    """Return an entity as an answer; None if it isn't in the almanac."""
    found = facts.entities.get(entity_id or "")
    return found and Answer(found.aliases, found)


# Relations of several kinds of entities. `field` is the name of a field of the entity.


def text(_: Facts, x: Entity, field: str) -> Answer | None:
    """Return the text of a field."""
    return _literal(getattr(x, field))


def figure(_: Facts, x: Entity, field: str, least: int = 0) -> Answer | None:
    """Return the number of a field; None if it is less than `least`."""
    return _figure(getattr(x, field), least)


def count(_: Facts, x: Entity, field: str, least: int = 0) -> Answer | None:
    """Return the length of a field; None if it is less than `least`."""
    return _figure(len(getattr(x, field)), least)


def linked(facts: Facts, x: Entity, field: str) -> Answer | None:
    """Return the entity whose id is in a field."""
    return _entity(facts, getattr(x, field))


def only(facts: Facts, x: Entity, field: str) -> Answer | None:
    """Return the entity whose id is the only one in a field."""
    ids = getattr(x, field)
    return _entity(facts, ids[0]) if len(ids) == 1 else None


def country(facts: Facts, x: City | Subdivision) -> Answer | None:
    """Return the country of an entity whose name is unambiguous without it."""
    return _entity(facts, x.country) if x.alone and facts.get(x.country, Country).sovereign else None


def state(facts: Facts, x: City | County) -> Answer | None:
    """Return the US state of an entity whose name is unambiguous without it."""
    return _entity(facts, x.state) if x.alone else None


def place(facts: Facts, x: Country | State | Zone, position: int) -> Answer | None:
    """Return the place at that position by population if it is in a passage and no other is as populous."""
    near = [facts.get(i, City) for i in x.cities[: position + 1]]
    if len(near) < max(position, 2 if isinstance(x, Zone) else 3):
        return None
    people = [c.population for c in near]
    return _entity(facts, near[position - 1].id) if people.count(people[position - 1]) == 1 else None


# Relations of one kind of entity.


def larger_place(facts: Facts, x: City) -> Answer | None:
    """Return the nearest place of the same country with more inhabitants."""
    return _entity(facts, x.larger.city) if x.larger else None


def distance_to_larger(_: Facts, x: City) -> Answer | None:
    """Return the distance to the nearest larger place in kilometres, if it is more than 5."""
    if x.larger is None or x.larger.km <= 5:
        return None
    km = x.larger.km
    return _literal(f"{km:,}", str(km), f"{km:,} kilometres", f"{km:,} km", f"{km} kilometers")


def rank(_: Facts, x: City) -> Answer | None:
    """Return the rank by population, if it is after the fifth."""
    return _literal(ordinal(x.rank), str(x.rank), ordinal(x.rank).replace(",", "")) if x.rank > 5 else None


def last_county(facts: Facts, x: State) -> Answer | None:
    """Return the alphabetically last county."""
    return _entity(facts, x.counties[-1])


def next_county(facts: Facts, x: County) -> Answer | None:
    """Return the alphabetically next county of the same state."""
    parts = facts.get(x.state, State).counties
    return _entity(facts, parts[x.number]) if x.number < len(parts) else None


def capital(facts: Facts, x: Country) -> Answer | None:
    """Return the capital: the place, or its name if it is not among the places."""
    return (_entity(facts, x.capital_city) or _literal(x.capital)) if x.capital else None


def area(_: Facts, x: Country) -> Answer | None:
    """Return the area in square kilometres."""
    return _literal(number(x.area), str(x.area), f"{number(x.area)} square kilometres") if x.area else None


def calling_code(_: Facts, x: Country) -> Answer | None:
    """Return the calling code in its usual spellings."""
    return _literal(x.phone, x.phone.removeprefix("+"), x.phone.replace(" ", "-")) if x.phone else None


def domain(_: Facts, x: Country) -> Answer | None:
    """Return the top-level domain with and without the dot."""
    return _literal(x.tld, x.tld.removeprefix(".")) if x.tld else None


def only_neighbour(facts: Facts, x: Country) -> Answer | None:
    """Return the only country with a land border."""
    return only(facts, x, "neighbours") if x.bordered else None


def neighbours(_: Facts, x: Country) -> Answer | None:
    """Return the number of countries with a land border."""
    return _figure(len(x.neighbours), 1) if x.bordered else None


def divisions(_: Facts, x: Country) -> Answer | None:
    """Return the number of first-level subdivisions."""
    return _figure(sum(x.divisions.values()), 1)


def places_of(_: Facts, x: Country, limit: int) -> Answer | None:
    """Return the number of places with at least `limit` inhabitants, one of `SIZES`."""
    return _figure(x.sizes[limit], 1) if len(x.cities) >= 3 else None


def subdivision_code(_: Facts, x: Subdivision) -> Answer | None:
    """Return the code with a hyphen and with a space."""
    return _literal(x.code, x.code.replace("-", " "))


# Descriptions.


def field(_: Facts, x: Entity, name: str) -> str | None:
    """Return a field as text."""
    return str(getattr(x, name))


def searchable_field(_: Facts, x: Entity, name: str) -> str | None:
    """Return the code in a field if a search can find it."""
    code = getattr(x, name)
    return code if searchable(code) else None


def unshared_field(facts: Facts, x: Country, name: str) -> str | None:
    """Return the calling code or domain of a country if no other country has it, and a search can find it."""
    code = getattr(x, name)
    return code if code and _holders(facts)[code] == 1 and searchable(code) else None


@lru_cache(maxsize=1)
def _holders(facts: Facts) -> Counter[str | None]:
    """Return the number of countries by calling code and by domain."""
    lands = facts.all(Country)
    return Counter([c.phone and c.phone.split()[0] for c in lands] + [c.tld for c in lands])
