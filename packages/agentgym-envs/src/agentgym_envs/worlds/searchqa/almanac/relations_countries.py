"""Relations and descriptions of countries and currencies."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

from agentgym_envs.worlds.searchqa.almanac.entities import SIZES, City, Country, Currency, Facts
from agentgym_envs.worlds.searchqa.almanac.relations import (
    Answer,
    Description,
    Relation,
    entity,
    figure,
    literal,
    searchable,
)
from agentgym_envs.worlds.searchqa.almanac.words import number


def _nth(facts: Facts, c: Country, n: int) -> Answer | None:
    """Return the n-th most populous place if it is in a passage and no other is as populous."""
    near = [facts.get(i, City) for i in c.cities[: n + 1]]
    people = [city.population for city in near]
    if len(near) < max(n, 3) or people.count(people[n - 1]) > 1:
        return None
    return entity(facts, near[n - 1].id)


def _capital(facts: Facts, c: Country) -> Answer | None:
    if c.capital is None:
        return None
    return entity(facts, c.capital_city) or literal(c.capital)


def _only_neighbour(facts: Facts, c: Country) -> Answer | None:
    return entity(facts, c.neighbours[0]) if c.bordered and len(c.neighbours) == 1 else None


def _at_least(limit: int) -> Relation[Country]:
    def find(_: Facts, c: Country) -> Answer | None:
        return figure(c.sizes[limit] or None) if len(c.cities) >= 3 else None

    return Relation(
        name=f"places-{limit // 1000}k",
        kind=Country,
        find=find,
        asks=(
            f"How many places of at least {number(limit)} inhabitants does the almanac list in {{x}}?",
            f"How many places with {number(limit)} inhabitants or more does the almanac list in {{x}}?",
        ),
        query="places inhabitants largest places",
        aspect="/places",
        counts=True,
    )


def _place(name: str, n: int, words: str) -> Relation[Country]:
    return Relation(
        name=name,
        kind=Country,
        find=lambda f, c: _nth(f, c, n),
        leads=City,
        asks=(f"What is the {words} place of {{x}}?", f"Which is the {words} place in {{x}}?"),
        nouns=(f"the {words} place of {{x}}", f"the {words} place in {{x}}"),
        query="largest places inhabitants",
        aspect="/places",
    )


COUNTRY: tuple[Relation[Any], ...] = (
    Relation(
        name="capital",
        kind=Country,
        find=_capital,
        leads=City,
        asks=("What is the capital of {x}?", "Which city is the capital of {x}?"),
        nouns=("the capital of {x}",),
        query="country capital area population",
    ),
    Relation(
        name="area",
        kind=Country,
        find=lambda _, c: (
            literal(number(c.area), str(c.area), f"{number(c.area)} square kilometres") if c.area else None
        ),
        asks=(
            "What is the area in square kilometres of {x}?",
            "How many square kilometres make up the area of {x}?",
        ),
        query="country area square kilometres capital",
    ),
    Relation(
        name="population",
        kind=Country,
        find=lambda _, c: figure(c.population),
        asks=(
            "What is the population of {x}?",
            "How many inhabitants are there in {x}?",
        ),
        query="country population area capital",
    ),
    Relation(
        name="currency",
        kind=Country,
        find=lambda f, c: entity(f, c.currency),
        leads=Currency,
        asks=(
            "What is the currency of {x}?",
            "Which currency is used in {x}?",
            "In which currency does one pay in {x}?",
        ),
        nouns=("the currency of {x}", "the currency used in {x}"),
        query="currency",
        aspect="/currency",
    ),
    Relation(
        name="phone",
        kind=Country,
        find=lambda _, c: literal(
            c.phone, c.phone and c.phone.removeprefix("+"), c.phone and c.phone.replace(" ", "-")
        ),
        asks=(
            "What is the international calling code of {x}?",
            "Which international calling code belongs to {x}?",
        ),
        query="codes international calling code",
        aspect="/codes",
    ),
    Relation(
        name="domain",
        kind=Country,
        find=lambda _, c: literal(c.tld, c.tld and c.tld.removeprefix(".")),
        asks=(
            "What is the top-level Internet domain of {x}?",
            "Which top-level Internet domain belongs to {x}?",
        ),
        query="codes top-level domain",
        aspect="/codes",
    ),
    Relation(
        name="iso3",
        kind=Country,
        find=lambda _, c: literal(c.alpha3),
        asks=(
            "What is the three-letter ISO 3166-1 code of {x}?",
            "Which three-letter code does ISO 3166-1 give to {x}?",
        ),
        query="ISO 3166-1 codes",
        aspect="/codes",
    ),
    Relation(
        name="number",
        kind=Country,
        find=lambda _, c: literal(c.numeric),
        asks=(
            "What is the numeric ISO 3166-1 code of {x}?",
            "Which number does ISO 3166-1 give to {x}?",
        ),
        query="ISO 3166-1 codes number",
        aspect="/codes",
    ),
    Relation(
        name="neighbour",
        kind=Country,
        find=_only_neighbour,
        leads=Country,
        asks=("Which country is the only land neighbour of {x}?",),
        nouns=("the only land neighbour of {x}",),
        query="land borders neighbours",
        aspect="/borders",
    ),
    Relation(
        name="neighbours",
        kind=Country,
        find=lambda _, c: figure(len(c.neighbours)) if c.bordered and c.neighbours else None,
        asks=(
            "How many countries share a land border with {x}?",
            "How many countries border by land on {x}?",
        ),
        query="land borders neighbours",
        aspect="/borders",
        counts=True,
    ),
    Relation(
        name="languages",
        kind=Country,
        find=lambda _, c: figure(len(c.languages)) if c.languages else None,
        asks=("How many languages does GeoNames list for {x}?",),
        query="languages listed",
        aspect="/languages",
        counts=True,
    ),
    Relation(
        name="divisions",
        kind=Country,
        find=lambda _, c: figure(sum(c.divisions.values())) if c.divisions else None,
        asks=(
            "How many first-level subdivisions does ISO 3166-2 list for {x}?",
            "Into how many first-level subdivisions does ISO 3166-2 divide {x}?",
        ),
        query="first-level subdivisions",
        aspect="/divisions",
        counts=True,
    ),
    Relation(
        name="places",
        kind=Country,
        find=lambda _, c: figure(len(c.cities)) if len(c.cities) >= 3 else None,
        asks=("How many places does the almanac list in {x}?",),
        query="places almanac lists largest places",
        aspect="/places",
        counts=True,
    ),
    *map(_at_least, SIZES),
    _place("largest", 1, "most populous"),
    _place("second", 2, "second most populous"),
    _place("third", 3, "third most populous"),
    _place("fourth", 4, "fourth most populous"),
    _place("fifth", 5, "fifth most populous"),
)

CURRENCY: tuple[Relation[Any], ...] = (
    Relation(
        name="code",
        kind=Currency,
        find=lambda _, c: literal(c.code),
        asks=("What is the ISO 4217 code of {x}?", "Which code of three letters does ISO 4217 give to {x}?"),
        query="ISO 4217 code",
    ),
    Relation(
        name="number",
        kind=Currency,
        find=lambda _, c: literal(c.numeric),
        asks=("What is the ISO 4217 number of {x}?", "Which number does ISO 4217 give to {x}?"),
        query="ISO 4217 number",
    ),
    Relation(
        name="country",
        kind=Currency,
        find=lambda f, c: entity(f, c.countries[0]) if len(c.countries) == 1 else None,
        leads=Country,
        asks=("Which is the only country or territory that pays in {x}?",),
        nouns=("the only country or territory that pays in {x}",),
        query="used by country",
    ),
)


@lru_cache(maxsize=1)
def _holders(facts: Facts) -> Counter[str | None]:
    """Return the number of countries by calling code and by domain."""
    lands = facts.all(Country)
    return Counter([c.phone and c.phone.split()[0] for c in lands] + [c.tld for c in lands])


def _own(facts: Facts, code: str | None) -> str | None:
    """Return a calling code or domain if only one country has it."""
    return code if code and _holders(facts)[code] == 1 and searchable(code) else None


DESCRIPTIONS: tuple[Description[Any], ...] = (
    Description(
        name="domain",
        kind=Country,
        value=lambda f, c: _own(f, c.tld),
        asks=("Which country or territory has the top-level Internet domain {v}?",),
        nouns=(
            "the country or territory with the Internet domain {v}",
            "the country or territory whose top-level domain is {v}",
        ),
        query="codes top-level domain {v}",
        aspect="/codes",
    ),
    Description(
        name="phone",
        kind=Country,
        value=lambda f, c: _own(f, c.phone),
        asks=("Which country or territory has the international calling code {v}?",),
        nouns=(
            "the country or territory with the calling code {v}",
            "the country or territory that one calls with the code {v}",
        ),
        query="international calling code {v}",
        aspect="/codes",
    ),
    Description(
        name="code",
        kind=Currency,
        value=lambda _, c: c.code,
        asks=("Which currency has the ISO 4217 code {v}?",),
        nouns=("the currency with the ISO 4217 code {v}",),
        query="currency ISO 4217 {v}",
    ),
)
