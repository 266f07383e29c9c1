"""Relations and descriptions of places, time zones, and the states and counties of the US."""

from __future__ import annotations

from typing import Any

from agentgym_envs.worlds.searchqa.almanac.entities import City, Country, County, Facts, State, Zone
from agentgym_envs.worlds.searchqa.almanac.relations import Answer, Description, Relation, entity, figure, literal
from agentgym_envs.worlds.searchqa.almanac.words import ordinal


def _country(facts: Facts, c: City) -> Answer | None:
    """Return the country of a place whose name is unambiguous without it."""
    return entity(facts, c.country) if c.alone and facts.get(c.country, Country).sovereign else None


def _nth(facts: Facts, owner: Country | State | Zone, n: int) -> Answer | None:
    """Return the n-th most populous place if it is in a passage and no other is as populous."""
    near = [facts.get(c, City) for c in owner.cities[: n + 1]]
    if len(near) < max(n, 2 if isinstance(owner, Zone) else 3):
        return None
    people = [c.population for c in near]
    return entity(facts, near[n - 1].id) if people.count(people[n - 1]) == 1 else None


CITY: tuple[Relation[Any], ...] = (
    Relation(
        name="country",
        kind=City,
        find=_country,
        leads=Country,
        asks=(
            "In which country does {x} lie?",
            "Which country does {x} belong to?",
            "In which country is {x}?",
        ),
        nouns=("the country where {x} lies", "the country that {x} belongs to", "the country in which {x} is situated"),
        query="country",
    ),
    Relation(
        name="state",
        kind=City,
        find=lambda f, c: entity(f, c.state) if c.alone else None,
        leads=State,
        asks=(
            "In which US state does {x} lie?",
            "Which US state does {x} belong to?",
        ),
        nouns=("the US state where {x} lies", "the US state that {x} belongs to"),
        query="US state",
    ),
    Relation(
        name="population",
        kind=City,
        find=lambda _, c: figure(c.population),
        asks=(
            "What is the population of {x}?",
            "How many people live in {x}?",
            "How many inhabitants are there in {x}?",
        ),
        query="population",
    ),
    Relation(
        name="larger",
        kind=City,
        find=lambda f, c: entity(f, c.larger.city if c.larger else None),
        leads=City,
        asks=(
            "Which is the nearest place of the same country with more inhabitants than {x}?",
            "Which more populous place of the same country is nearest to {x}?",
        ),
        nouns=(
            "the nearest place of the same country with more inhabitants than {x}",
            "the more populous place of the same country that is nearest to {x}",
        ),
        query="nearest larger place",
    ),
    Relation(
        name="distance",
        kind=City,
        find=lambda _, c: literal(*_km(c.larger.km)) if c.larger and c.larger.km > 5 else None,
        asks=(
            "How many kilometres from {x} is the nearest place of its country with more inhabitants?",
            "How far in kilometres from {x} is the nearest more populous place of its country?",
        ),
        query="nearest larger place kilometres",
    ),
    Relation(
        name="zone",
        kind=City,
        find=lambda f, c: entity(f, c.zone),
        leads=Zone,
        asks=(
            "Which IANA time zone is kept in {x}?",
            "What is the name of the IANA time zone of {x}?",
        ),
        nouns=("the IANA time zone of {x}", "the IANA time zone that {x} keeps"),
        query="time zone",
    ),
    Relation(
        name="rank",
        kind=City,
        find=lambda _, c: literal(*_rank(c.rank)) if c.rank > 5 else None,
        asks=(
            "What is the rank of {x} by population among the places of its country?",
            "By population, which rank among the places of its country is held by {x}?",
        ),
        query="rank by population",
    ),
)


def _km(km: int) -> tuple[str, ...]:
    return f"{km:,}", str(km), f"{km:,} kilometres", f"{km:,} km", f"{km} kilometers"


def _rank(rank: int) -> tuple[str, ...]:
    return ordinal(rank), str(rank), ordinal(rank).replace(",", "")


ZONE: tuple[Relation[Any], ...] = (
    Relation(
        name="largest",
        kind=Zone,
        find=lambda f, z: _nth(f, z, 1),
        leads=City,
        asks=("Which is the most populous place in {x}?",),
        nouns=("the most populous place in {x}",),
        query="most populous",
    ),
    Relation(
        name="northernmost",
        kind=Zone,
        find=lambda f, z: entity(f, z.northernmost),
        leads=City,
        asks=("Which is the northernmost place that the almanac lists in {x}?",),
        nouns=("the northernmost place listed in {x}",),
        query="northernmost",
    ),
    Relation(
        name="places",
        kind=Zone,
        find=lambda _, z: figure(len(z.cities)) if len(z.cities) > 1 else None,
        asks=("How many places does the almanac list in {x}?", "How many of the places in the almanac keep {x}?"),
        query="places",
        counts=True,
    ),
)

STATE: tuple[Relation[Any], ...] = (
    Relation(
        name="postal",
        kind=State,
        find=lambda _, s: literal(s.postal),
        asks=("What is the postal abbreviation of {x}?",),
        query="postal abbreviation FIPS",
    ),
    Relation(
        name="fips",
        kind=State,
        find=lambda _, s: literal(s.fips),
        asks=("What is the FIPS code of {x}?",),
        query="postal abbreviation FIPS code",
    ),
    Relation(
        name="counties",
        kind=State,
        find=lambda _, s: figure(len(s.counties)),
        asks=(
            "How many counties or equivalents are there in {x}?",
            "What is the number of counties or equivalents of {x}?",
        ),
        query="postal number of counties",
        counts=True,
    ),
    Relation(
        name="places",
        kind=State,
        find=lambda _, s: figure(len(s.cities)),
        asks=("How many places does the almanac list in {x}?",),
        query="postal places listed",
        counts=True,
    ),
    Relation(
        name="largest",
        kind=State,
        find=lambda f, s: _nth(f, s, 1),
        leads=City,
        asks=(
            "What is the most populous place in {x}?",
            "Which place has the most inhabitants in {x}?",
        ),
        nouns=("the most populous place in {x}",),
        query="postal most populous place",
    ),
    Relation(
        name="second",
        kind=State,
        find=lambda f, s: _nth(f, s, 2),
        leads=City,
        asks=("What is the second most populous place in {x}?",),
        nouns=("the second most populous place in {x}",),
        query="postal second most populous place",
    ),
    Relation(
        name="last-county",
        kind=State,
        find=lambda f, s: entity(f, s.counties[-1]),
        leads=County,
        asks=("Which is the alphabetically last county or equivalent of {x}?",),
        nouns=("the alphabetically last county of {x}",),
        query="postal counties alphabetical order last",
    ),
)

COUNTY: tuple[Relation[Any], ...] = (
    Relation(
        name="state",
        kind=County,
        find=lambda f, c: entity(f, c.state) if c.alone else None,
        leads=State,
        asks=(
            "In which US state is {x}?",
            "To which US state does {x} belong?",
        ),
        nouns=("the US state where {x} lies", "the US state that {x} is part of"),
        query="US state",
    ),
    Relation(
        name="fips",
        kind=County,
        find=lambda _, c: literal(c.fips),
        asks=("What is the FIPS code of {x}?", "Which FIPS code does {x} have?"),
        query="FIPS code",
    ),
    Relation(
        name="next",
        kind=County,
        find=lambda f, c: entity(f, _next(f, c)),
        leads=County,
        asks=("Which county or equivalent of the same state comes next in alphabetical order after {x}?",),
        nouns=("the next county in the alphabetical list of the state after {x}",),
        query="next in the alphabet",
    ),
)

DESCRIPTIONS: tuple[Description[Any], ...] = (
    Description(
        name="fips",
        kind=County,
        value=lambda _, c: c.fips,
        asks=("Which US county or equivalent has the FIPS code {v}?",),
        nouns=("the US county with the FIPS code {v}",),
        query="county FIPS code {v}",
    ),
)


def _next(facts: Facts, c: County) -> str | None:
    parts = facts.get(c.state, State).counties
    return parts[c.number] if c.number < len(parts) else None
