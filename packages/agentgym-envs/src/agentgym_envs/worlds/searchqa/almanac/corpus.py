"""Generates all passages of the almanac from its facts."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym_envs.retrieval.passages import Passage
from agentgym_envs.worlds.searchqa.almanac import prose_codes, prose_countries, prose_places
from agentgym_envs.worlds.searchqa.almanac.entities import (
    City,
    Country,
    County,
    Currency,
    Element,
    Facts,
    Language,
    Script,
    State,
    Subdivision,
    Zone,
)


def write_passages(facts: Facts) -> Iterator[Passage]:
    """Yield one or more passages per entity, in the order of the facts."""
    for entity in facts.entities.values():
        match entity:
            case Country():
                yield from prose_countries.country(facts, entity)
            case City():
                yield prose_places.city(facts, entity)
            case State():
                yield prose_places.state(facts, entity)
            case County():
                yield prose_places.county(facts, entity)
            case Zone():
                yield prose_places.zone(facts, entity)
            case Subdivision():
                yield prose_codes.subdivision(facts, entity)
            case Currency():
                yield prose_codes.currency(facts, entity)
            case Language():
                yield prose_codes.language(facts, entity)
            case Script():
                yield prose_codes.script(entity)
            case Element():
                yield prose_codes.element(facts, entity)
            case _:
                raise TypeError(f"Nobody writes passages on {entity.id}, a {type(entity).__name__}.")
