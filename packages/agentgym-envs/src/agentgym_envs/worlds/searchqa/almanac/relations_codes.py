"""Relations and descriptions of subdivisions, languages, scripts and chemical elements."""

from __future__ import annotations

from typing import Any

from agentgym_envs.worlds.searchqa.almanac.entities import Country, Element, Facts, Language, Script, Subdivision
from agentgym_envs.worlds.searchqa.almanac.relations import (
    Answer,
    Description,
    Relation,
    entity,
    figure,
    literal,
    searchable,
)


def _country(facts: Facts, s: Subdivision) -> Answer | None:
    """Return the country of a subdivision whose name is unambiguous without it."""
    return entity(facts, s.country) if s.alone and facts.get(s.country, Country).sovereign else None


SUBDIVISION: tuple[Relation[Any], ...] = (
    Relation(
        name="country",
        kind=Subdivision,
        find=_country,
        leads=Country,
        asks=(
            "To which country does {x} belong?",
            "In which country is {x}?",
        ),
        nouns=(
            "the country that {x} belongs to",
            "the country of which {x} is a subdivision",
        ),
        query="subdivision of country",
    ),
    Relation(
        name="code",
        kind=Subdivision,
        find=lambda _, s: literal(s.code, s.code.replace("-", " ")),
        asks=("What is the ISO 3166-2 code of {x}?", "Under which code does ISO 3166-2 list {x}?"),
        query="ISO 3166-2 code",
    ),
    Relation(
        name="parent",
        kind=Subdivision,
        find=lambda f, s: entity(f, s.parent),
        leads=Subdivision,
        asks=("Which larger subdivision contains {x}?",),
        nouns=("the larger subdivision that contains {x}",),
        query="forms part of",
    ),
    Relation(
        name="next",
        kind=Subdivision,
        find=lambda f, s: entity(f, s.following),
        leads=Subdivision,
        asks=("Which subdivision of the same type and country comes next in the order of ISO codes after {x}?",),
        nouns=("the next subdivision of the same type and country, in the order of ISO codes, after {x}",),
        query="next in the order of codes",
    ),
    Relation(
        name="siblings",
        kind=Subdivision,
        find=lambda _, s: figure(s.siblings) if s.siblings > 1 else None,
        asks=("How many subdivisions are there in its country of the same type as {x}?",),
        query="subdivisions of this type number",
        counts=True,
    ),
)

LANGUAGE: tuple[Relation[Any], ...] = (
    Relation(
        name="code",
        kind=Language,
        find=lambda _, t: literal(t.code),
        asks=(
            "What is the ISO 639-3 code of the language {x}?",
            "Which three letters stand for the language {x} in ISO 639-3?",
        ),
        query="ISO 639-3 code",
    ),
    Relation(
        name="short-code",
        kind=Language,
        find=lambda _, t: literal(t.short),
        asks=("Which code of two letters does the language {x} have in ISO 639-1?",),
        query="ISO 639-1 code",
    ),
    Relation(
        name="country",
        kind=Language,
        find=lambda f, t: entity(f, t.countries[0]) if len(t.countries) == 1 else None,
        leads=Country,
        asks=("Which is the only country or territory that lists {x} among its languages?",),
        nouns=("the only country or territory that lists {x} among its languages",),
        query="country lists among its languages",
    ),
)

SCRIPT: tuple[Relation[Any], ...] = (
    Relation(
        name="code",
        kind=Script,
        find=lambda _, s: literal(s.code),
        asks=("What is the ISO 15924 code of the script {x}?",),
        query="ISO 15924 code",
    ),
    Relation(
        name="number",
        kind=Script,
        find=lambda _, s: literal(s.numeric),
        asks=("Which number does the script {x} have in ISO 15924?",),
        query="ISO 15924 number",
    ),
)

ELEMENT: tuple[Relation[Any], ...] = (
    Relation(
        name="symbol",
        kind=Element,
        find=lambda _, e: literal(e.symbol),
        asks=("What is the chemical symbol of {x}?",),
        query="symbol",
    ),
    Relation(
        name="number",
        kind=Element,
        find=lambda _, e: figure(e.number),
        asks=("What is the atomic number of {x}?",),
        query="atomic number",
    ),
    Relation(
        name="mass",
        kind=Element,
        find=lambda _, e: literal(e.mass),
        asks=("What is the atomic mass of {x}?",),
        query="atomic mass",
    ),
    Relation(
        name="density",
        kind=Element,
        find=lambda _, e: literal(e.density),
        asks=("What is the density in grams per cubic centimetre of {x}?",),
        query="density",
    ),
    Relation(
        name="next",
        kind=Element,
        find=lambda f, e: entity(f, e.after),
        leads=Element,
        asks=("Which element comes next in the periodic table after {x}?",),
        nouns=("the next element in the periodic table after {x}",),
        query="next periodic table",
    ),
    Relation(
        name="isotopes",
        kind=Element,
        find=lambda _, e: figure(e.isotopes) if e.isotopes else None,
        asks=(
            "How many natural isotopes are there of {x}?",
            "How many isotopes occur in nature of {x}?",
        ),
        query="isotopes nature",
        counts=True,
    ),
)

DESCRIPTIONS: tuple[Description[Any], ...] = (
    Description(
        name="code",
        kind=Subdivision,
        value=lambda _, s: s.code if searchable(s.code) else None,
        asks=("Which subdivision has the ISO 3166-2 code {v}?",),
        nouns=("the subdivision with the ISO 3166-2 code {v}",),
        query="subdivision ISO 3166-2 {v}",
    ),
    Description(
        name="code",
        kind=Language,
        value=lambda _, t: t.code if searchable(t.code) else None,
        asks=("Which language has the ISO 639-3 code {v}?",),
        nouns=("the language with the ISO 639-3 code {v}",),
        query="language ISO 639-3 code {v}",
    ),
    Description(
        name="symbol",
        kind=Element,
        value=lambda _, e: e.symbol,
        asks=("Which chemical element has the symbol {v}?",),
        nouns=("the chemical element with the symbol {v}",),
        query="chemical element symbol {v}",
    ),
    Description(
        name="number",
        kind=Element,
        value=lambda _, e: str(e.number),
        asks=("Which chemical element has the atomic number {v}?",),
        nouns=("the chemical element with the atomic number {v}",),
        query="chemical element atomic number {v}",
    ),
)
