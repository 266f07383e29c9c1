"""What the almanac knows about: places, countries, currencies, languages, scripts and elements, as plain facts.

Every entity has an id, which is also the id of its main passage, and a home: the unit that the split into train and
test keeps together (`splits.py`). Entities refer to each other by id. Knows no source and no wording.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entity:
    """Anything that has a passage."""

    id: str
    """Such as `city/2267057` (GeoNames), `country/PT`, `element/Fe`."""
    title: str
    """Of its main passage; no other entity has it."""
    name: str
    """How questions call it: short where that is unambiguous in the almanac, and told apart elsewhere."""
    home: str
    """What is split into train and test together with it."""
    aliases: tuple[str, ...] = ()
    """Other answers that mean it."""


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
    """Whether no other place of the source bears this name, and a word of it is rare."""
    country: str
    region: str | None
    """State of the US or nation of the United Kingdom; the source names no others."""
    state: str | None
    """Id of the US state."""
    population: int
    latitude: float
    longitude: float
    zone: str
    rank: int
    """By population among the places of its country, from 1."""
    larger: Neighbour | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Country(Entity):
    """A country or territory with a code of ISO 3166-1."""

    plain: str
    """Its name alone."""
    the: str
    """The name as it stands in a sentence: `the Netherlands`, `Portugal`."""
    sovereign: bool
    """Whether it is a state of its own, which is what "in which country" asks for."""
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
    """How many of its places have at least so many inhabitants, for each of `SIZES`."""
    divisions: Mapping[str, int]
    """How many subdivisions of each type ISO 3166-2 lists directly under it."""
    examples: tuple[str, ...]
    """Names of some of these."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State(Entity):
    """A state of the US, or its federal district."""

    postal: str
    fips: str
    counties: tuple[str, ...]
    """Ids, in alphabetical order of names."""
    cities: tuple[str, ...]
    """Ids of its places, most populous first."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class County(Entity):
    """A county of the US, or what stands for one."""

    plain: str
    alone: bool
    """Whether no other state has a county of this name."""
    fips: str
    state: str
    number: int
    """Place in the alphabetical list of its state, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subdivision(Entity):
    """A subdivision of a country with a code of ISO 3166-2."""

    plain: str
    alone: bool
    """Whether no other subdivision bears this name."""
    code: str
    type: str
    country: str
    parent: str | None
    siblings: int
    """How many subdivisions of its type the country has, itself included."""
    preceding: str | None
    """Id of the one before it among those of its type in the country, by code."""
    following: str | None
    """Id of the one after it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Currency(Entity):
    """A currency with a code of ISO 4217."""

    code: str
    numeric: str
    countries: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Language(Entity):
    """A language with a code of ISO 639-3."""

    code: str
    short: str | None
    """Its code of two letters."""
    type: str
    """Such as `living` or `extinct`."""
    countries: tuple[str, ...]
    """Those that list it among their languages."""
    peers: int
    """How many languages of its type are here, itself included."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Script(Entity):
    """A writing system with a code of ISO 15924."""

    code: str
    numeric: str
    kin: str | None
    """The script with the number before its own."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Zone(Entity):
    """A time zone of the IANA database, as far as places of the almanac keep it."""

    cities: tuple[str, ...]
    """Most populous first."""
    northernmost: str | None
    """The northernmost of several places, where it is so by more than a hundredth of a degree."""
    countries: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Element(Entity):
    """A chemical element."""

    symbol: str
    number: int
    mass: str
    """Standard atomic mass in unified mass units, or that of a long-lived isotope."""
    density: str | None
    """g/cm³ near room temperature, where it is known without reservation."""
    structure: str | None
    isotopes: int
    """How many occur in nature."""
    period: int
    group: int | None
    before: str | None
    after: str | None


SIZES = (50_000, 100_000, 500_000)
"""Numbers of inhabitants from which the places of a country are counted."""

E = TypeVar("E", bound=Entity)


@dataclass(frozen=True, eq=False)
class Facts:
    """All entities, by id."""

    entities: Mapping[str, Entity] = field(repr=False)

    def all(self, kind: type[E]) -> tuple[E, ...]:
        """The entities of one kind, in the order of their source."""
        return tuple(e for e in self._by_kind.get(kind, ()) if isinstance(e, kind))

    def get(self, entity_id: str, kind: type[E]) -> E:
        """The entity of that id and kind.

        Raises:
            KeyError: when there is none.
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
