"""Subdivisions, currencies, languages and scripts from `pycountry` (iso-codes, LGPL 2.1)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from agentgym_envs.worlds.searchqa.almanac.corrections import APART, COUNTRIES_TOO, KINDS, ODD
from agentgym_envs.worlds.searchqa.almanac.entities import Currency, Language, Script, Subdivision
from agentgym_envs.worlds.searchqa.almanac.words import folded, plain

_TYPES = {"L": "living", "E": "extinct", "H": "historical", "C": "constructed"}


def subdivisions(records: Iterable[Any], countries: Mapping[str, str]) -> list[Subdivision]:
    """Return the subdivisions with a unique name in their country, by code; those of the US are `State`s."""
    known = sorted((r for r in records if _listed(r, countries)), key=lambda r: r.code)
    types = Counter((r.country_code, r.type) for r in known)
    names = Counter(folded(r.name) for r in known)
    own = Counter((r.country_code, r.type, folded(r.name)) for r in known)
    kept = [r for r in known if own[r.country_code, r.type, folded(r.name)] == 1 and not ODD & set(r.name + r.type)]
    ids = {r.code: f"subdivision/{r.code}" for r in kept}
    following = _following(known)
    preceding = {after: before for before, after in following.items()}
    return [
        Subdivision(
            id=ids[r.code],
            title=f"{r.name} ({_kind(r.type)}, {countries[r.country_code]})",
            name=r.name if names[folded(r.name)] == 1 else f"{r.name} ({countries[r.country_code]})",
            home=r.country_code,
            aliases=tuple(dict.fromkeys((r.name, plain(r.name), f"{r.name} {r.type}"))),
            plain=r.name,
            alone=names[folded(r.name)] == 1,
            code=r.code,
            type=_kind(r.type),
            country=f"country/{r.country_code}",
            parent=ids.get(r.parent_code) if r.parent_code else None,
            siblings=types[r.country_code, r.type],
            preceding=ids.get(preceding.get(r.code, "")),
            following=ids.get(following.get(r.code, "")),
        )
        for r in kept
    ]


def _listed(record: Any, countries: Mapping[str, str]) -> bool:
    """Whether it is a subdivision outside the US that isn't also a country or territory in ISO 3166."""
    own = record.country_code
    return own in countries and own != "US" and record.code not in COUNTRIES_TOO and record.type not in APART


def _following(known: Sequence[Any]) -> dict[str, str]:
    """Return, by code, the code of the next subdivision of the same type in the same country."""
    groups = defaultdict[tuple[str, str], list[str]](list)
    for r in known:
        groups[r.country_code, r.type].append(r.code)
    return {a: b for codes in groups.values() for a, b in pairwise(codes)}


def first_level(records: Iterable[Any]) -> dict[str, list[tuple[str, str]]]:
    """Return type and name of each first-level subdivision in the order of codes, by country code."""
    found = defaultdict[str, list[tuple[str, str]]](list)
    for r in sorted(records, key=lambda r: r.code):
        if r.parent_code is None:
            found[r.country_code].append((_kind(r.type), r.name))
    return dict(found)


def currencies(records: Iterable[Any], users: Mapping[str, Sequence[str]]) -> list[Currency]:
    """Return the currencies in use; `users` has the ids of countries by currency code."""
    return [
        Currency(
            id=f"currency/{r.alpha_3}",
            title=f"{r.name} (currency)",
            name=r.name,
            home=_home(users[r.alpha_3], f"currency/{r.alpha_3}"),
            aliases=tuple(dict.fromkeys((r.name, r.alpha_3, plain(r.name)))),
            code=r.alpha_3,
            numeric=r.numeric,
            countries=tuple(users[r.alpha_3]),
        )
        for r in records
        if r.alpha_3 in users
    ]


def languages(records: Iterable[Any], users: Mapping[str, Sequence[str]]) -> list[Language]:
    """Return the languages that have a two-letter code, are listed by a country, or are not living languages."""
    records = list(records)
    names = Counter(folded(language_name(r)) for r in records)
    kept = [
        r
        for r in records
        if names[folded(language_name(r))] == 1
        and r.type in _TYPES
        and (r.alpha_3 in users or r.type != "L" or getattr(r, "alpha_2", None))
    ]
    peers = Counter(r.type for r in kept)
    return [
        Language(
            id=f"language/{r.alpha_3}",
            title=f"{language_name(r)} language",
            name=language_name(r),
            home=_home(users.get(r.alpha_3, ()), f"language/{r.alpha_3}"),
            aliases=tuple(dict.fromkeys((language_name(r), plain(language_name(r)), r.name))),
            code=r.alpha_3,
            short=getattr(r, "alpha_2", None),
            type=_TYPES[r.type],
            countries=tuple(users.get(r.alpha_3, ())),
            peers=peers[r.type],
        )
        for r in kept
    ]


def language_name(record: Any) -> str:
    """Return the name without its part in brackets."""
    return str(record.name).split(" (")[0]


def scripts(records: Iterable[Any]) -> list[Script]:
    """Return the writing systems with a plain name, by number; those from 900 on are for private use and symbols."""
    kept = sorted(
        (r for r in records if int(r.numeric) < 900 and not ODD & set(r.name) and "," not in r.name),
        key=lambda r: r.numeric,
    )
    return [
        Script(
            id=f"script/{r.alpha_4}",
            title=f"{r.name} script",
            name=r.name,
            home=f"script/{r.alpha_4}",
            aliases=tuple(dict.fromkeys((r.name, plain(r.name), f"{r.name} script"))),
            code=r.alpha_4,
            numeric=r.numeric,
            kin=before.name if before else None,
        )
        for before, r in zip([None, *kept], kept, strict=False)
    ]


def _kind(kind: str) -> str:
    return KINDS.get(kind, kind.lower())


def _home(users: Sequence[str], own: str) -> str:
    return users[0].removeprefix("country/") if len(users) == 1 else own
