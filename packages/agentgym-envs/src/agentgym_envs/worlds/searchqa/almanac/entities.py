"""The entities of the almanac as plain data: places, countries, currencies, languages, scripts and elements.

Every entity has an id, which is also the id of its main passage, and a home: the unit that the train/test split keeps
together (`splits.py`). Entities refer to each other by id. Independent of sources and wordings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entity:
    """The base of everything that has a passage."""

    id: str
    """Such as `city/2267057` (GeoNames), `country/PT`, `element/Fe`."""
    title: str
    """The title of its main passage, unique among entities."""
    name: str
    """Its name in questions: short if that is unambiguous in the almanac, disambiguated otherwise."""
    home: str
    """The unit of the train/test split that it belongs to."""
    aliases: tuple[str, ...] = ()
    """All answers that are accepted for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """The nearest place of the same country that has more inhabitants."""

    city: str
    km: int
    direction: str
    """From the smaller place, such as `north-east`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class City(Entity):
    """A populated place of at least 15,000 inhabitants."""

    plain: str
    """Its name alone."""
    alone: bool
    """Whether no other place of the source has this name, and a word of it is rare."""
    country: str
    region: str | None
    """US state or nation of the United Kingdom; the source has no other regions."""
    state: str | None
    """Id of the US state."""
    population: int
    latitude: float
    longitude: float
    zone: str
    rank: int
    """Rank by population among the places of its country, from 1."""
    larger: Neighbour | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Country(Entity):
    """A country or territory with an ISO 3166-1 code."""

    plain: str
    """Its name alone."""
    the: str
    """The name in a sentence: `the Netherlands`, `Portugal`."""
    sovereign: bool
    """Whether it is a sovereign state, and so can answer "in which country"."""
    official: str | None
    continent: str
    alpha2: str
    alpha3: str
    numeric: str
    capital: str | None
    capital_city: str | None
    """Id of the capital among the places."""
    area: int | None
    """Square kilometres."""
    population: int
    currency: str | None
    phone: str | None
    tld: str | None
    languages: tuple[str, ...]
    """Ids of languages, most spoken first."""
    neighbours: tuple[str, ...]
    """Ids of countries."""
    bordered: bool
    """Whether all its land neighbours are in the almanac, so that they can be counted."""
    cities: tuple[str, ...]
    """Ids of its places, most populous first."""
    sizes: Mapping[int, int]
    """The number of its places with at least that many inhabitants, for each of `SIZES`."""
    divisions: Mapping[str, int]
    """The number of first-level subdivisions in ISO 3166-2, by type."""
    examples: tuple[str, ...]
    """Names of those first-level subdivisions that are usable in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State(Entity):
    """A state of the US."""

    postal: str
    fips: str
    counties: tuple[str, ...]
    """Ids, in alphabetical order of names."""
    cities: tuple[str, ...]
    """Ids of its places, most populous first."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class County(Entity):
    """A county of the US or its equivalent."""

    plain: str
    alone: bool
    """Whether no other state has a county of this name."""
    fips: str
    state: str
    number: int
    """Position in the alphabetical list of its state, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subdivision(Entity):
    """A subdivision of a country with an ISO 3166-2 code."""

    plain: str
    alone: bool
    """Whether no other subdivision has this name."""
    code: str
    type: str
    country: str
    parent: str | None
    siblings: int
    """The number of subdivisions of its type in the country, itself included."""
    preceding: str | None
    """Id of the previous subdivision of its type in the country, in the order of codes."""
    following: str | None
    """Id of the next one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Currency(Entity):
    """A currency with an ISO 4217 code."""

    code: str
    numeric: str
    countries: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Language(Entity):
    """A language with an ISO 639-3 code."""

    code: str
    short: str | None
    """Its two-letter code."""
    type: str
    """Such as `living` or `extinct`."""
    countries: tuple[str, ...]
    """Ids of the countries that list it among their languages."""
    peers: int
    """The number of languages of its type in the almanac, itself included."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Script(Entity):
    """A writing system with an ISO 15924 code."""

    code: str
    numeric: str
    kin: str | None
    """Name of the previous script in the order of numbers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Zone(Entity):
    """A time zone of the IANA database that places of the almanac use."""

    cities: tuple[str, ...]
    """Ids of its places, most populous first."""
    northernmost: str | None
    """Id of the northernmost of several places, if it is so by more than 0.01 degrees."""
    countries: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Element(Entity):
    """A chemical element."""

    symbol: str
    number: int
    mass: str
    """Standard atomic mass in unified mass units, or that of a long-lived isotope."""
    density: str | None
    """g/cm³ near room temperature; None if the source has a caveat."""
    structure: str | None
    isotopes: int
    """The number of natural isotopes."""
    period: int
    group: int | None
    before: str | None
    after: str | None


SIZES = (50_000, 100_000, 500_000)
"""Thresholds of inhabitants for counting the places of a country."""

E = TypeVar("E", bound=Entity)


@dataclass(frozen=True, eq=False)
class Facts:
    """All entities, by id."""

    entities: Mapping[str, Entity] = field(repr=False)

    def all(self, kind: type[E]) -> tuple[E, ...]:
        """Return the entities of one kind, in the order of their source."""
        return tuple(e for e in self._by_kind.get(kind, ()) if isinstance(e, kind))

    def get(self, entity_id: str, kind: type[E]) -> E:
        """Return the entity with that id and kind.

        Raises:
            KeyError: if there is none.
        """
        entity = self.entities[entity_id]
        if not isinstance(entity, kind):
            raise KeyError(f"{entity_id} is a {type(entity).__name__}, not a {kind.__name__}.")
        return entity

    @cached_property
    def _by_kind(self) -> dict[type[Entity], list[Entity]]:
        kinds: dict[type[Entity], list[Entity]] = {}
        for entity in self.entities.values():
            kinds.setdefault(type(entity), []).append(entity)
        return kinds
