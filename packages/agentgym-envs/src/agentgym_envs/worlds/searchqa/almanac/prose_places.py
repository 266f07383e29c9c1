"""Passages on places, time zones, and the states and counties of the US."""

from __future__ import annotations

from agentgym_envs.retrieval.passages import Passage
from agentgym_envs.worlds.searchqa.almanac.entities import City, Country, County, Facts, State, Zone
from agentgym_envs.worlds.searchqa.almanac.prose import Writer
from agentgym_envs.worlds.searchqa.almanac.words import listed, number, ordinal


def city(facts: Facts, c: City) -> Passage:
    """Write the passage on a place: its kind, location, population, time zone and nearest larger place."""
    w, land = Writer(c.id, c.title), facts.get(c.country, Country)
    kind = "city" if c.population >= 100_000 else "town"
    where = f"{c.region}, {land.plain}" if c.region else land.the
    w.opens(
        f"{c.plain} is a {kind} in {where}.",
        f"{c.plain} is a {kind} that lies in {where}.",
        f"The {kind} of {c.plain} is situated in {where}.",
    )
    if land.capital_city == c.id and land.sovereign:
        w.opens(f"It is the capital of {land.the}.", f"It serves as the capital of {land.the}.")
    people = number(c.population)
    w.says(
        f"{c.plain} has a population of {people}.",
        f"{c.plain} is home to {people} people.",
        f"For {c.plain} GeoNames counts {people} inhabitants.",
        f"The number of inhabitants of {c.plain} is given as {people}.",
    )
    w.says(
        f"Clocks in {c.plain} follow the time zone {c.zone.removeprefix('zone/')}.",
        f"Its time zone is {c.zone.removeprefix('zone/')}.",
        f"The place keeps the time of the zone {c.zone.removeprefix('zone/')}.",
    )
    spot = coordinates(c.latitude, c.longitude)
    w.says(
        f"Its coordinates are {spot}.",
        f"It lies at {spot}.",
        f"On the map {c.plain} is found at {spot}.",
    )
    if c.rank > 1:
        w.says(
            f"By population {c.plain} ranks {ordinal(c.rank)} among the places of {land.the}.",
            f"Among the places of {land.the} {c.plain} comes {ordinal(c.rank)} by number of inhabitants.",
        )
    else:
        w.says(f"No other place in {land.the} has more inhabitants.", f"It is the most populous place in {land.the}.")
    _nearest(facts, c, w)
    return w.passage()


def _nearest(facts: Facts, c: City, w: Writer) -> None:
    if c.larger is None:
        return
    near = facts.get(c.larger.city, City)
    called = near.plain if near.region == c.region else near.title
    far = f"{number(c.larger.km)} {'kilometre' if c.larger.km == 1 else 'kilometres'}"
    w.says(
        f"The nearest larger place is {called}, {far} to the {c.larger.direction}.",
        f"{called}, which lies {far} to the {c.larger.direction}, is the nearest place with more inhabitants.",
        f"The nearest place in the country with a larger population is {called}, {far} to the {c.larger.direction}.",
    )


def coordinates(latitude: float, longitude: float) -> str:
    """Format coordinates: `38.72° N, 9.13° W`."""
    north, east = "N" if latitude >= 0 else "S", "E" if longitude >= 0 else "W"
    return f"{abs(latitude):.2f}° {north}, {abs(longitude):.2f}° {east}"


def zone(facts: Facts, z: Zone) -> Passage:
    """Write the passage on a time zone: its countries and places."""
    w = Writer(z.id, z.title)
    places = [facts.get(c, City) for c in z.cities]
    lands = [facts.get(c, Country).the for c in z.countries]
    w.opens(
        f"{z.name} is a time zone of the IANA database that is kept in {listed(lands)}.",
        f"The IANA database of time zones has an entry {z.name}, which applies in {listed(lands)}.",
    )
    if len(places) > 1:
        w.says(
            f"The most populous place that keeps {z.name} is {places[0].title}.",
            f"The most populous place of {z.name} is {places[0].title}.",
        )
        if z.northernmost:
            north = facts.get(z.northernmost, City).title
            w.says(f"The northernmost place is {north}.", f"Farthest to the north lies {north}.")
        w.says(
            f"This almanac lists {number(len(places))} places in {z.name}.",
            f"{number(len(places))} places of this almanac belong to {z.name}.",
        )
    else:
        w.says(f"The only place of this almanac in the zone is {places[0].title}.")
    return w.passage()


def state(facts: Facts, s: State) -> Passage:
    """Write the passage on a US state: its codes, counties and largest places."""
    w = Writer(s.id, s.title)
    places = [facts.get(c, City) for c in s.cities]
    parts = [facts.get(c, County).plain for c in s.counties]
    w.opens(f"{s.name} is one of the fifty states of the United States.", f"{s.name} is a state of the United States.")
    w.says(
        f"Its postal abbreviation is {s.postal}, and its FIPS code is {s.fips}.",
        f"The state has the postal abbreviation {s.postal} and the FIPS code {s.fips}.",
    )
    w.says(
        f"It is divided into {number(len(parts))} counties or equivalents; in alphabetical order the first is "
        f"{parts[0]} and the last is {parts[-1]}.",
        f"The state has {number(len(parts))} counties or equivalents, from {parts[0]} to {parts[-1]} in alphabetical "
        "order.",
    )
    w.says(
        f"The most populous place in {s.name} is {places[0].plain} with {number(places[0].population)} inhabitants, "
        f"followed by {places[1].plain} with {number(places[1].population)}.",
        f"With {number(places[0].population)} inhabitants {places[0].plain} is the most populous place in the state; "
        f"{places[1].plain} is second with {number(places[1].population)}.",
    )
    w.says(
        f"This almanac lists {number(len(places))} places in {s.name}.",
        f"{number(len(places))} places in {s.name} are listed in this almanac.",
    )
    return w.passage()


def county(facts: Facts, c: County) -> Passage:
    """Write the passage on a county: its code and its position in alphabetical order."""
    w, s = Writer(c.id, c.title), facts.get(c.state, State)
    parts = [facts.get(i, County).plain for i in s.counties]
    kind = "county" if c.plain.endswith("County") else "county equivalent"
    w.opens(
        f"{c.plain} is a {kind} in {s.name}, United States.",
        f"{c.plain} is a {kind} of the US state of {s.name}.",
        f"{c.plain}, a {kind}, is part of {s.name} in the United States.",
    )
    w.says(
        f"Its FIPS code is {c.fips}.",
        f"In the federal list of counties it has the FIPS code {c.fips}.",
        f"The county is known by the FIPS code {c.fips}.",
    )
    total = number(len(parts))
    w.says(
        f"In the alphabetical list of the {total} counties and equivalents of {s.name} it is number {c.number}."
        if len(parts) > 1
        else f"It is the only one in {s.name}.",
        f"It is the {ordinal(c.number)} of {total} counties and equivalents of {s.name} in alphabetical order.",
    )
    if c.number < len(parts):
        w.says(
            f"The next in the alphabet is {parts[c.number]}.",
            f"{parts[c.number]} follows it in the alphabetical order of the state.",
        )
    if c.number > 1:
        w.says(
            f"Before it in the alphabet comes {parts[c.number - 2]}.",
            f"The one before it in the list is {parts[c.number - 2]}.",
        )
    return w.passage()
