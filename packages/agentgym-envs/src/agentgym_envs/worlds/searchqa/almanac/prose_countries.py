"""Passages on countries: one per aspect of a country, so that a question of two hops takes two searches."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym_envs.retrieval.passages import Passage
from agentgym_envs.worlds.searchqa.almanac.entities import City, Country, Currency, Facts, Language
from agentgym_envs.worlds.searchqa.almanac.prose import Writer
from agentgym_envs.worlds.searchqa.almanac.words import counted, listed, number, numeral, plural, shuffled


def country(facts: Facts, c: Country) -> Iterator[Passage]:
    """Yield the passages on those aspects of a country for which there are facts."""
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
    if c.official and c.official.casefold() != c.plain.casefold():
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
        area, density = number(c.area), c.population / c.area
        dense = f"{density:,.1f}" if density >= 1 else f"{density:.2f}"
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
    others = sorted(facts.get(o, Country).the for o in money.countries if o != c.id)
    near = [facts.get(n, Country) for n in c.neighbours]
    w.opens(
        f"The currency of {c.the} is the {money.name}.",
        f"In {c.the} one pays in the currency {money.name}.",
        f"{c.the} uses the {money.name} as its currency.",
    )
    if not others:
        w.says(
            f"No other country or territory of this almanac pays in the {money.name}.",
            f"{c.the} is the only country or territory of this almanac that has the {money.name} for its money.",
        )
    else:
        also = listed(others) if len(others) <= 6 else f"{number(len(others))} other countries and territories"
        w.says(f"It shares this money with {also}.", f"The {money.name} is the money of {also} as well.")
    if c.bordered:
        same = sum(n.currency == c.currency for n in near)
        w.says(_around(c, same, len(near)))
    return w.passage()


def _around(c: Country, same: int, among: int) -> str:
    """Return a sentence on how many neighbours of a country use its currency."""
    if among == 0:
        return f"As {c.the} has no land border, it shares no border with another currency."
    if among == 1:
        return f"Its only land neighbour pays in {'the same' if same else 'another'} currency."
    if same in (0, among):
        return f"{'All' if same else 'None'} of its {numeral(among)} land neighbours use the same currency."
    use = "uses" if same == 1 else "use"
    return f"Of its {numeral(among)} land neighbours {numeral(same)} {use} the same currency."


def _tongues(facts: Facts, c: Country) -> Passage:
    w = Writer(f"{c.id}/languages", f"Languages of {c.the}")
    tongues = [facts.get(t, Language) for t in c.languages]
    names = [t.name for t in tongues]
    if len(names) == 1:
        w.opens(
            f"For {c.the} GeoNames lists 1 language, {names[0]}.",
            f"1 language is listed for {c.the} by GeoNames, {names[0]}.",
        )
        w.says("There is no second language on this list.", "No other language is on this list.")
    else:
        w.opens(
            f"For {c.the} GeoNames lists {number(len(names))} languages: {listed(names)}.",
            f"{number(len(names))} languages are listed for {c.the} by GeoNames: {listed(names)}.",
        )
        w.says(
            f"{names[0]} stands first in this list of languages, and {names[-1]} last.",
            f"The first of these languages is {names[0]}, the last {names[-1]}.",
        )
    alone = [t.name for t in tongues if len(t.countries) == 1]
    if alone:
        w.says(
            f"No other country or territory of this almanac lists {listed(alone).replace(' and ', ' or ')}.",
            f"Of all countries and territories of this almanac only {c.the} lists {listed(alone)}.",
        )
    else:
        w.says(
            "Other countries and territories of this almanac list it as well."
            if len(names) == 1
            else "Each of these languages is on the list of some other country or territory, too.",
            "No language on this list is on this one alone.",
        )
    return w.passage()


def _borders(facts: Facts, c: Country) -> Passage:
    w = Writer(f"{c.id}/borders", f"Borders of {c.the}")
    near = sorted((facts.get(n, Country) for n in c.neighbours), key=lambda n: n.plain)
    names = [n.the for n in near]
    if not near:
        w.opens(
            f"{c.the} has no land border with any other country or territory.",
            f"No other country or territory borders on {c.the} by land.",
        )
        w.says(f"Whoever travels to {c.the} comes by sea or by air.", "It can be reached by sea and by air only.")
    elif len(near) == 1:
        w.opens(
            f"{c.the} has a land border with 1 country only, {names[0]}.",
            f"1 country borders on {c.the} by land: {names[0]}.",
        )
        w.says("It has no other land neighbour.", f"{names[0]} is thus its only land neighbour.")
    else:
        w.opens(
            f"{c.the} has land borders with {number(len(near))} countries: {listed(names)}.",
            f"{number(len(near))} countries border on {c.the} by land: {listed(names)}.",
        )
        w.says(f"In alphabetical order {names[0]} is the first neighbour of {c.the} and {names[-1]} the last.")
        people = max(near, key=lambda n: n.population).the
        w.says(
            f"Of the neighbours of {c.the}, {people} has the most inhabitants.",
            f"The most populous neighbour of {c.the} is {people}.",
        )
    abroad = [n.the for n in near if n.continent != c.continent]
    if abroad:
        w.says(f"{listed(abroad)} {'is' if len(abroad) == 1 else 'are'} counted to another continent.")
    elif near:
        w.says(f"No land border leads out of {c.continent}.", f"All its land borders lie within {c.continent}.")
    else:
        w.says(f"GeoNames counts it to {c.continent}.")
    return w.passage()


def _places(facts: Facts, c: Country) -> Passage:
    w = Writer(f"{c.id}/places", f"Largest places of {c.the}")
    cities = [facts.get(i, City) for i in c.cities]
    top = [f"{p.plain if p.region is None else p.title} ({number(p.population)})" for p in cities[:5]]
    w.opens(
        f"The most populous places of {c.the} are, in this order and with their inhabitants, {listed(top)}.",
        f"Ordered by inhabitants, the largest places of {c.the} are {listed(top)}.",
    )
    told = [
        f"{number(n)} {'has' if n == 1 else 'have'} at least {number(limit)} inhabitants"
        for limit, n in c.sizes.items()
        if n
    ]
    w.says(
        f"This almanac lists {number(len(cities))} places in {c.the}" + (f"; of them {listed(told)}." if told else "."),
        f"In {c.the} this almanac knows {number(len(cities))} places"
        + (f", of which {listed(told)}." if told else "."),
    )
    return w.passage()


def _divisions(c: Country) -> Passage:
    w = Writer(f"{c.id}/divisions", f"First-level subdivisions of {c.the}")
    kinds = [counted(n, kind, plural(kind)) for kind, n in c.divisions.items()]
    total = sum(c.divisions.values())
    w.opens(
        f"At its first level, ISO 3166-2 divides {c.the} into {listed(kinds)}.",
        f"ISO 3166-2 lists {listed(kinds)} directly under {c.the}.",
    )
    some = shuffled(f"{c.id} examples", c.examples)[:4]
    if len(some) > 1:
        w.says(f"Among them are {listed(some)}.", f"Examples of the subdivisions of {c.the} are {listed(some)}.")
    if len(kinds) > 1:
        w.says(
            f"Together these are {number(total)} subdivisions of the first level.",
            f"That makes {number(total)} first-level subdivisions in all.",
        )
    else:
        w.says("There are no other subdivisions at this level.", "All subdivisions at this level are of this type.")
    return w.passage()
