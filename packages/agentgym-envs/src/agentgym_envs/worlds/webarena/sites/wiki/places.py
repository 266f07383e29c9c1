"""Articles on the region, its counties and its towns."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentgym_envs.worlds.webarena.sites.region import NAME, County, Region, Town, degrees
from agentgym_envs.worlds.webarena.sites.wiki.article import (
    Article,
    link,
    listed,
    number,
    to_county,
    to_river,
    to_town,
    town_title,
)

_CENSUS = (1901, 1951, 2001)


def articles(region: Region, random: Random) -> Iterator[Article]:
    """Yield all of them."""
    yield _region(region)
    for county in region.counties:
        yield _county(region, county, random)
    for town in region.towns:
        yield _town(region, town, random)


def _region(region: Region) -> Article:
    people = sum(town.population for town in region.towns)
    largest = max(region.towns, key=lambda town: town.population)
    highest = max(region.hills, key=lambda hill: hill.height)
    longest = max(region.rivers, key=lambda river: river.length)
    counties = listed([to_county(county.name) for county in region.counties])
    body = f"""{NAME} is a region between the western hills and the sea. {number(people)} people live in its
{len(region.towns)} towns, the largest of which is
{to_town(largest.name)}.{{{{Statistical Office of {NAME}, Census 2021, table 1.}}}}

== Geography ==

The land falls from the hills in the west to the coast in the east. Its highest point is {link(highest.name)} at
{highest.height} metres, its longest river the {to_river(longest.name)} with {longest.length} km. All of its rivers run
eastwards.

== Administration ==

There are {len(region.counties)} counties: {counties}.

== See also ==

* [[List of towns by population]]
* [[List of rivers by length]]
* [[List of firms by year of foundation]]"""
    box = (
        ("Population", number(people)),
        ("Largest town", to_town(largest.name)),
        ("Highest point", link(highest.name)),
    )
    return Article(NAME, "region", body, box, ("Geography",))


def _county(region: Region, county: County, random: Random) -> Article:
    towns = sorted((town for town in region.towns if town.county == county.name), key=lambda town: -town.population)
    people = sum(town.population for town in towns)
    rows = "\n".join(f"| {to_town(town.name)} | {number(town.population)} | {town.founded} |" for town in towns)
    shire = random.choice(
        (
            "Its courts sat in the open until the first shire hall was built.",
            "For two centuries it minted coins of its own.",
            "Its sheriffs were chosen by lot among the freeholders.",
            "Its arms show a plough above three waves.",
        )
    )
    body = f"""{county.name} is a county of [[{NAME}]]. Its seat is {to_town(county.seat)}. It has {len(towns)} towns
with {number(people)} inhabitants in all.{{{{Statistical Office of {NAME}, Census 2021, table 2.}}}}

== History ==

The county was set up in {county.founded}. {shire}

== Towns ==

| Town | Population | Founded |
{rows}"""
    box = (
        ("Seat", to_town(county.seat)),
        ("Set up", str(county.founded)),
        ("Towns", str(len(towns))),
        ("Population", number(people)),
    )
    return Article(
        f"{county.name} (county)", "county", body, box, ("Counties",), (county.name, f"County of {county.name}")
    )


def _town(region: Region, town: Town, random: Random) -> Article:
    lat, lon = degrees(town.x, town.y)
    area = round(4 + town.population / random.randint(900, 1500), 1)
    mayor = f"{random.choice(region.people).name.split()[0]} {random.choice(region.people).name.split()[1]}"
    box = [
        ("County", to_county(town.county)),
        ("Population", f"{number(town.population)} (2021)"),
        ("Founded", str(town.founded)),
        ("Elevation", f"{town.elevation} m"),
        ("Area", f"{area} km²"),
        ("Mayor", mayor),
        ("Market day", town.market_day),
        ("Postcode", town.postcode),
        ("Coordinates", f"{lat:.5f}, {lon:.5f}"),
    ]
    if town.river:
        box.insert(3, ("River", to_river(town.river)))
    body = "\n\n".join(
        [
            _town_lead(town, random),
            "== History ==\n\n" + _town_history(region, town, random),
            "== Population ==\n\n" + _town_census(town, random),
            "== Economy and crafts ==\n\n" + _town_economy(region, town),
            "== Sights and customs ==\n\n" + _town_sights(region, town),
            "== Transport ==\n\n" + _town_roads(region, town),
            "== People ==\n\n" + _town_people(region, town),
        ]
    )
    where = ("Towns on the coast",) if town.coastal else ()
    return Article(town_title(town.name), "town", body, tuple(box), ("Towns", f"Towns in {town.county}", *where))


def _town_lead(town: Town, random: Random) -> str:
    lies = (
        f"on the {to_river(town.river)}" if town.river else "on the coast" if town.coastal
        else f"beside {link(town.lake)}" if town.lake else f"at the foot of {link(town.hill)}" if town.hill
        else random.choice(("among fields and orchards", "on an old drove road", "on a low ridge", "in a dry valley"))
    )  # fmt: skip
    character = random.choice(
        (
            "It is known for its long market square.",
            "Most of its houses are of pale limestone.",
            "Three roads meet in its centre.",
            "Its roofs are of blue slate.",
            "Half of its old wall still stands.",
            "Its lanes run down to the water in steps." if town.river or town.coastal else "Its lanes climb in steps.",
        )
    )
    return (
        f"{town.name} is a town in {to_county(town.county)}, [[{NAME}]], {lies}. At the census of 2021 it had "
        f"{number(town.population)} inhabitants.{{{{Statistical Office of {NAME}, Census 2021, table 3.}}}} {character}"
    )


def _town_history(region: Region, town: Town, random: Random) -> str:
    charter = town.founded + random.randint(30, 90)
    fire = random.randint(max(charter + 20, 1500), 1885)
    first = random.choice(
        (
            f"The town is first mentioned in {town.founded}, in a list of tithes.",
            f"A charter of {town.founded} names the place for the first time.",
            f"Settlers from the neighbouring valleys founded the town in {town.founded}.",
        )
    )
    then = random.choice(
        (
            f"It was granted a market on {town.market_day}s in {charter}, which is still held.",
            f"From {charter} on it had the right to hold a market on {town.market_day}s.",
        )
    )
    loss = random.choice(
        (
            f"A fire in {fire} destroyed forty houses.",
            f"The flood of {fire} took the mills with it.",
            f"In {fire} a fever halved its population.",
            f"A storm in {fire} brought down the church tower.",
        )
    )
    source = random.choice([person for person in region.people if person.calling == "historian"]).name
    return f"{first} {then}\n\n{loss}{{{{{source}, The Towns of {NAME}, p. {random.randint(12, 480)}.}}}}"


def _town_census(town: Town, random: Random) -> str:
    rows: list[str] = []
    for index, year in enumerate(_CENSUS):
        share = random.uniform(0.42, 0.6) + 0.17 * index
        rows.append(f"| {year} | {number(int(town.population * share))} |")
    return "\n".join(["| Census | Population |", *rows, f"| 2021 | {number(town.population)} |"])


def _town_economy(region: Region, town: Town) -> str:
    firms = [link(firm.name) for firm in region.firms if firm.seat == town.name]
    crafts = [link(craft.name) for craft in region.crafts if craft.town == town.name]
    seat = f"{listed(firms)} {'has its' if len(firms) == 1 else 'have their'} head office here." if firms else ""
    made = f"The town is known for {listed(crafts)}." if crafts else ""
    return " ".join(filter(None, (seat, made))) or "Most people work in the neighbouring towns, or on the land."


def _town_sights(region: Region, town: Town) -> str:
    sights = "\n".join(
        f"* {link(one.name)} ({one.kind}, {one.built})" for one in region.buildings if one.town == town.name
    )
    events = [f"{link(event.name)} in {event.month}" for event in region.events if event.town == town.name]
    return f"{sights}\n\nEvery year brings the {listed(events)}."


def _town_roads(region: Region, town: Town) -> str:
    rows: list[str] = []
    for road in region.roads:
        if town.name in (road.start, road.end):
            other = road.end if road.start == town.name else road.start
            rows.append(f"| {to_town(other)} | {road.number} | {road.metres / 1000:.1f} km |")
    return "\n".join(["| Road to | Number | Distance |", *sorted(rows)])


def _town_people(region: Region, town: Town) -> str:
    born = sorted((person for person in region.people if person.town == town.name), key=lambda person: person.born)
    return "\n".join(f"* {link(person.name)} ({person.born}–{person.died or ''}), {person.calling}" for person in born)
