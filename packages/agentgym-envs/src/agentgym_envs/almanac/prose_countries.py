"""Passages on countries: one on each side of a country, so that a question of two hops takes two searches."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym_envs.almanac.entities import City, Country, Currency, Facts, Language
from agentgym_envs.almanac.prose import Writer
from agentgym_envs.almanac.words import counted, listed, number, plural
from agentgym_envs.retrieval.passages import Passage


def country(facts: Facts, c: Country) -> Iterator[Passage]:
    """All passages on a country that there are facts for."""
    yield _overview(facts, c)
    yield _codes(c)
    if c.currency:
        yield _money(facts, c, facts.get(c.currency, Currency))
    if c.languages:
        yield _tongues(facts, c)
    if c.bordered:
        yield _borders(facts, c)
    if len(c.cities) >= 3:
        yield _places(facts, c)
    if c.divisions:
        yield _divisions(c)


def _overview(facts: Facts, c: Country) -> Passage:
    w = Writer(c.id, c.title)
    if c.sovereign:
        w.opens(f"{c.the} is a country in {c.continent}.", f"{c.the}, a country, belongs to {c.continent}.")
    else:
        w.opens(f"{c.the} belongs to the countries and territories of {c.continent} in ISO 3166-1.")
    if c.official and c.official.casefold() != c.title.casefold():
        name = c.official.removeprefix("the ")
        w.says(f"Its official name is the {name}." if " " in name else f"Its official name is {name}.")
    if c.capital:
        w.says(
            f"The capital of {c.the} is {c.capital}.",
            f"Its capital is {c.capital}.",
            f"{c.capital} is its capital.",
        )
    people = number(c.population)
    w.says(
        f"GeoNames puts the population of {c.the} at {people}.",
        f"It has {people} inhabitants.",
        f"Its population is {people}.",
    )
    if c.area:
        area, dense = number(c.area), f"{c.population / c.area:,.1f}"
        w.says(
            f"With an area of {area} square kilometres it has {dense} inhabitants per square kilometre.",
            f"It covers an area of {area} square kilometres, which makes {dense} people to the square kilometre.",
        )
    return w.passage()


def _codes(c: Country) -> Passage:
    w = Writer(f"{c.id}/codes", f"Codes of {c.the}")
    w.opens(
        f"In ISO 3166-1, {c.the} has the codes {c.alpha2} and {c.alpha3} and the number {c.numeric}.",
        f"The ISO 3166-1 codes of {c.the} are {c.alpha2} and {c.alpha3}, and its number there is {c.numeric}.",
    )
    if c.phone:
        w.says(
            f"Telephone numbers of {c.the} begin with the international calling code {c.phone}.",
            f"The international calling code of {c.the} is {c.phone}.",
        )
    if c.tld:
        w.says(
            f"Its top-level domain on the Internet is {c.tld}.",
            f"Internet addresses of {c.the} end in the top-level domain {c.tld}.",
        )
    return w.passage()


def _money(facts: Facts, c: Country, money: Currency) -> Passage:
    w = Writer(f"{c.id}/currency", f"Currency of {c.the}")
    others = [facts.get(o, Country).the for o in money.countries if o != c.id]
    w.opens(
        f"The currency of {c.the} is the {money.name}.",
        f"In {c.the} one pays in the currency {money.name}.",
        f"{c.the} uses the {money.name} as its currency.",
    )
    if not others:
        w.says("No other country or territory of this almanac pays in it.", "It is used nowhere else.")
    else:
        w.says(
            f"It is shared with {listed(others) if len(others) <= 6 else f'{number(len(others))} other countries and territories'}.",
        )
    return w.passage()


def _tongues(facts: Facts, c: Country) -> Passage:
    w = Writer(f"{c.id}/languages", f"Languages of {c.the}")
    names = [facts.get(t, Language).name for t in c.languages]
    if len(names) == 1:
        w.opens(f"For {c.the} GeoNames lists one language, {names[0]}.")
    else:
        w.opens(
            f"For {c.the} GeoNames lists {number(len(names))} languages: {listed(names)}.",
            f"{number(len(names))} languages are listed for {c.the} by GeoNames: {listed(names)}.",
        )
        w.says(f"{names[0]} stands first in this list of languages.", f"The first of these languages is {names[0]}.")
    return w.passage()


def _borders(facts: Facts, c: Country) -> Passage:
    w = Writer(f"{c.id}/borders", f"Borders of {c.the}")
    near = sorted(facts.get(n, Country).the for n in c.neighbours)
    if not near:
        w.opens(
            f"{c.the} has no land border with any other country.",
            f"No other country borders on {c.the} by land.",
        )
        w.says(f"Whoever travels to {c.the} comes by sea or by air.", "It can be reached by sea and by air only.")
    else:
        w.opens(
            f"{c.the} has land borders with {counted(len(near), 'country', 'countries')}: {listed(near)}.",
            f"{counted(len(near), 'country borders', 'countries border')} on {c.the} by land: {listed(near)}.",
        )
        if len(near) > 1:
            w.says(f"In alphabetical order {near[0]} is the first neighbour and {near[-1]} the last.")
    return w.passage()


def _places(facts: Facts, c: Country) -> Passage:
    w = Writer(f"{c.id}/places", f"Largest places of {c.the}")
    cities = [facts.get(i, City) for i in c.cities]
    top = [f"{p.plain if p.region is None else p.title} ({number(p.population)})" for p in cities[:5]]
    w.opens(
        f"The most populous places of {c.the} are, in this order and with their inhabitants, {listed(top)}.",
        f"Ordered by inhabitants, the largest places of {c.the} are {listed(top)}.",
    )
    sizes = [(limit, sum(p.population >= limit for p in cities)) for limit in SIZES]
    told = [
        f"{number(n)} {'has' if n == 1 else 'have'} at least {number(limit)} inhabitants" for limit, n in sizes if n
    ]
    w.says(
        f"This almanac lists {number(len(cities))} places in {c.the}" + (f"; of them {listed(told)}." if told else "."),
        f"In {c.the} this almanac knows {number(len(cities))} places"
        + (f", of which {listed(told)}." if told else "."),
    )
    return w.passage()


SIZES = (50_000, 100_000, 500_000)
"""Numbers of inhabitants from which the places of a country are counted."""


def _divisions(c: Country) -> Passage:
    w = Writer(f"{c.id}/divisions", f"Subdivisions of {c.the}")
    kinds = [counted(n, kind, plural(kind)) for kind, n in c.divisions.items()]
    total = sum(c.divisions.values())
    w.opens(
        f"At its first level, ISO 3166-2 divides {c.the} into {listed(kinds)}.",
        f"ISO 3166-2 lists {listed(kinds)} directly under {c.the}.",
    )
    if len(kinds) > 1:
        w.says(
            f"Together these are {number(total)} subdivisions of the first level.",
            f"That makes {number(total)} first-level subdivisions in all.",
        )
    else:
        w.says("There are no other subdivisions at this level.", "All subdivisions at this level are of this type.")
    return w.passage()
