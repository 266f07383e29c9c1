"""Index articles: lists with tables, and disambiguation pages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from agentgym_envs.worlds.webarena.sites.names import BRANDS
from agentgym_envs.worlds.webarena.sites.region import NAME, Person, Region
from agentgym_envs.worlds.webarena.sites.wiki.article import (
    Article,
    link,
    number,
    to_county,
    to_river,
    to_town,
    town_title,
)

_FEWEST = 3
"""Minimum number of meanings for a disambiguation page; a brand needs only two."""


def articles(region: Region) -> Iterator[Article]:
    """Yield all of them."""
    yield from _of_land(region)
    yield from _of_works(region)
    yield from _of_people(region)
    yield from _meanings(region)


def _list(title: str, lead: str, head: str, rows: Sequence[str], category: str = "Lists") -> Article:
    body = "\n\n".join((lead, "\n".join((f"| {head} |", *(f"| {row} |" for row in rows)))))
    return Article(title, "list", body, (), (category,))


def _of_land(region: Region) -> Iterator[Article]:
    towns = sorted(region.towns, key=lambda town: -town.population)
    rows = [
        f"{rank} | {to_town(town.name)} | {to_county(town.county)} | {number(town.population)}"
        for rank, town in enumerate(towns, start=1)
    ]
    yield _list("List of towns by population", f"The towns of [[{NAME}]].", "Rank | Town | County | Population", rows)
    oldest = sorted(region.towns, key=lambda town: (town.founded, town.name))
    rows = [f"{town.founded} | {to_town(town.name)} | {to_county(town.county)}" for town in oldest]
    yield _list("List of towns by year of foundation", f"The towns of [[{NAME}]].", "Founded | Town | County", rows)
    highest = sorted(region.towns, key=lambda town: (-town.elevation, town.name))[:30]
    rows = [f"{to_town(town.name)} | {town.elevation} m | {to_county(town.county)}" for town in highest]
    yield _list("List of highest towns", "The thirty highest towns.", "Town | Elevation | County", rows)
    rivers = sorted(region.rivers, key=lambda river: -river.length)
    rows = [f"{to_river(river.name)} | {river.length} km | {to_town(river.mouth)}" for river in rivers]
    yield _list("List of rivers by length", f"The rivers of [[{NAME}]].", "River | Length | Mouth", rows)
    hills = sorted(region.hills, key=lambda hill: -hill.height)
    rows = [f"{link(hill.name)} | {hill.height} m | {to_town(hill.town)}" for hill in hills]
    yield _list("List of hills by height", f"The hills of [[{NAME}]].", "Hill | Height | Nearest town", rows)
    lakes = sorted(region.lakes, key=lambda lake: -lake.area)
    rows = [f"{link(lake.name)} | {lake.area} km² | {lake.depth} m" for lake in lakes]
    yield _list("List of lakes by area", f"The lakes of [[{NAME}]].", "Lake | Area | Depth", rows)


def _of_works(region: Region) -> Iterator[Article]:
    firms = sorted(region.firms, key=lambda firm: (firm.founded, firm.name))
    rows = [f"{firm.founded} | {link(firm.name)} | {firm.brand} | {to_town(firm.seat)}" for firm in firms]
    yield _list(
        "List of firms by year of foundation", "Makers and brands.", "Founded | Firm | Brand | Head office", rows
    )
    firms = sorted(region.firms, key=lambda firm: (-firm.employees, firm.name))[:30]
    rows = [f"{link(firm.name)} | {number(firm.employees)}" for firm in firms]
    yield _list("List of largest employers", "The thirty largest firms.", "Firm | Employees", rows)
    months: dict[str, list[str]] = defaultdict(list)
    for event in region.events:
        months[event.month].append(f"{link(event.name)} | {to_town(event.town)} | {event.since}")
    for month in sorted(months):
        yield _list(f"List of festivals in {month}", f"Held every {month}.", "Festival | Town | Since", months[month])
    kinds: dict[str, list[str]] = defaultdict(list)
    for building in sorted(region.buildings, key=lambda building: (building.built, building.name)):
        kinds[building.kind].append(
            f"{building.built} | {link(building.name)} | {to_town(building.town)} | {building.height} m"
        )
    for kind in sorted(kinds):
        head = "Built | Name | Town | Height"
        yield _list(f"List of buildings: {kind}", f"Every {kind} of the region.", head, kinds[kind])


def _of_people(region: Region) -> Iterator[Article]:
    callings: dict[str, list[Person]] = defaultdict(list)
    for person in region.people:
        callings[person.calling].append(person)
    for calling in sorted(callings):
        people = sorted(callings[calling], key=lambda person: (person.born, person.name))
        rows = [f"{link(one.name)} | {one.born} | {one.died or 'living'} | {to_town(one.town)}" for one in people]
        title = "founders of firms" if calling == "founder" else f"{calling}s"
        yield _list(f"List of {title}", "In the order of birth.", "Name | Born | Died | Birthplace", rows)


def _meanings(region: Region) -> Iterator[Article]:
    """Yield pages for names shared by towns, brands and families."""
    towns = {town.name for town in region.towns}
    families: dict[str, list[Person]] = defaultdict(list)
    for person in region.people:
        families[person.name.split()[1]].append(person)
    for name in sorted({*BRANDS, *families}):
        items: list[str] = []
        if name in towns:
            items.append(f"{link(town_title(name))}, a town in {to_county(region.town(name).county)}")
        if name in BRANDS:
            firm = region.firm(name)
            items.append(f"{link(firm.name)}, a maker of household goods from {to_town(firm.seat)}")
        family = families.get(name, [])
        items += [f"{link(one.name)} (born {one.born}), {one.calling} from {to_town(one.town)}" for one in family]
        if len(items) >= _FEWEST or (len(items) > 1 and name in BRANDS):
            lines = "\n".join(f"* {item}" for item in items)
            title = f"{name} (disambiguation)" if name in towns and name not in BRANDS else name
            yield Article(title, "disambiguation", f"{name} may mean:\n\n{lines}", (), ("Names with several meanings",))
