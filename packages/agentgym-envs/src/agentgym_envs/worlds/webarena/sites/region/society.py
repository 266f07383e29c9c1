"""The region's people, firms, buildings, festivals and crafts."""

# ruff: noqa: SIM905 - long name lists are easier to read as text

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from agentgym_envs.worlds.webarena.sites.names import BRANDS, FIRST_NAMES, LAST_NAMES
from agentgym_envs.worlds.webarena.sites.region.land import Town

_PER_TOWN = 3
_LAST_BORN = 1988
_WORKS = {
    "painter": ("the painting {title}",),
    "novelist": ("the novel {title}", "the trilogy that begins with {title}"),
    "poet": ("the cycle of poems {title}",),
    "composer": ("the opera {title}", "the suite {title}"),
    "playwright": ("the play {title}",),
    "film director": ("the film {title}",),
    "photographer": ("the series of photographs {title}",),
    "sculptor": ("the bronze {title}",),
    "architect": ("town halls with open arcades", "schools lit from above", "bridges of dressed stone"),
    "engineer": ("the regulator for tidal mills", "a lattice truss for footbridges", "the self-levelling lock gate"),
    "botanist": ("a flora of the western hills", "the first key to the region's mosses", "work on salt-marsh grasses"),
    "astronomer": ("a catalogue of double stars", "the discovery of three comets", "timing the moons of Jupiter"),
    "physician": ("the first fever hospital in the region", "a handbook of nursing", "the fight against goitre"),
    "geologist": ("mapping the copper veins", "a theory of the raised beaches", "the survey of the limestone caves"),
    "cartographer": ("the Hundred-Sheet Atlas", "the first soundings of the harbours", "maps of the drove roads"),
    "mathematician": ("a theorem on tilings", "tables of the tides", "work on random walks"),
    "historian": ("a history of the wool trade", "an edition of the town charters", "a study of the fen drainers"),
    "rower": ("two titles in the single sculls", "rowing around the coast alone"),
    "chess player": ("winning the region's championship six times", "the opening that bears the name of the town"),
    "politician": ("the law on common land", "founding the public libraries", "the Harbour Act"),
    "explorer": ("an overland journey to the northern ice", "the crossing of the salt desert on foot"),
    "cook": ("a cookery book of smoked fish and barley", "the first inn with a printed menu"),
}
_TITLE_A = "Salt Silent Amber Winter Second Hollow Glass Northern Blue Last Long Broken Quiet Copper Evening".split()
_TITLE_B = "Ledger Harbour Orchard Ferry Lantern Staircase Tide Meadow Letter Weir Almanac Garden Causeway Bell".split()
_TRADES = {
    "ropes and nets": ("the twelve-strand rope", "a folding landing net"),
    "lamps and lanterns": ("the storm lantern", "a shaded reading lamp"),
    "earthenware": ("the blue-rimmed mug", "a lidded baking dish"),
    "oilskins and coats": ("the waxed harbour coat", "a hooded cape"),
    "hand tools": ("the bevelled garden spade", "a ratchet screwdriver"),
    "clocks": ("the eight-day wall clock", "a travelling alarm clock"),
    "paper and notebooks": ("the sewn field notebook", "a blotting pad"),
    "woollens": ("the ribbed seaman's jersey", "a double-weave blanket"),
    "furniture": ("the ladder-back chair", "a drop-leaf table"),
    "soaps and candles": ("a block of bayberry soap", "the beeswax taper"),
    "cutlery": ("the riveted kitchen knife", "a fish slice"),
    "bicycles": ("the three-speed roadster", "a carrier bicycle"),
    "seeds and garden goods": ("a hardy pea", "the galvanised watering can"),
    "tents and packs": ("the ridge tent", "a framed rucksack"),
}
_BUILDINGS = {
    "Castle": ("castle", 1080, 1480),
    "Abbey": ("abbey", 1090, 1420),
    "Old Bridge": ("bridge", 1300, 1780),
    "Viaduct": ("railway viaduct", 1848, 1902),
    "Town Hall": ("town hall", 1610, 1935),
    "Corn Exchange": ("market hall", 1720, 1880),
    "Guildhall": ("guildhall", 1380, 1660),
    "Windmill": ("windmill", 1680, 1860),
    "Observatory": ("observatory", 1790, 1930),
    "Theatre": ("theatre", 1780, 1938),
    "Library": ("library", 1850, 1968),
    "Railway Station": ("railway station", 1845, 1912),
    "Assembly Rooms": ("assembly rooms", 1740, 1830),
}
_COASTAL_BUILDINGS = {"Lighthouse": ("lighthouse", 1740, 1910), "Customs House": ("customs house", 1690, 1840)}
_TALL = ("Castle", "Abbey", "Viaduct", "Lighthouse")
_EVENTS = (
    "Herring Fair|Lantern Night|Wool Fair|Apple Week|Kite Festival|Raft Race|Book Fair|Bell Sunday|Cheese Market|"
    "Jazz Weekend|Harvest Supper|Sheep Drive|Film Days|Boat Parade|Flower Show|Folk Festival|Chess Congress|Hill Run"
).split("|")
_MONTHS = "January February March April May June July August September October November December".split()
_CRAFTS = {
    "lace": "bobbin lace with a ground of six-sided meshes",
    "blue ware": "stoneware dipped in cobalt slip and fired twice",
    "cheese": "a hard sheep's milk cheese rubbed with ash",
    "tweed": "a coarse tweed dyed with lichens",
    "cider": "a dry cider from late apples",
    "glass": "pale green glass with trapped bubbles",
    "gingerbread": "gingerbread pressed in pear-wood moulds",
    "baskets": "baskets of stripped willow with a twisted rim",
    "knives": "folding knives with handles of plum wood",
    "smoked eel": "eel smoked over alder for two nights",
    "bells": "hand bells cast in loam",
    "paper": "rag paper with a deckle edge",
}


@dataclass(frozen=True, slots=True)
class Person:
    """A person with an article in the encyclopedia."""

    name: str
    born: int
    died: int | None
    calling: str
    """Occupation, such as `botanist`."""
    town: str
    """Place of birth."""
    known_for: str


@dataclass(frozen=True, slots=True)
class Firm:
    """The maker behind a brand."""

    brand: str
    name: str
    """Such as `Bluefin & Sons`."""
    founder: str
    """One of the people, with the calling `founder`."""
    founded: int
    seat: str
    """The town of its head office."""
    trade: str
    """Its original trade."""
    employees: int
    product: str
    """Its best-known product."""


@dataclass(frozen=True, slots=True)
class Building:
    """A notable building."""

    name: str
    kind: str
    town: str
    built: int
    architect: str
    """One of the people, or an empty string if unknown."""
    height: int
    """Meters."""


@dataclass(frozen=True, slots=True)
class Event:
    """A yearly festival."""

    name: str
    town: str
    month: str
    since: int
    visitors: int


@dataclass(frozen=True, slots=True)
class Craft:
    """A product that a town is known for."""

    name: str
    town: str
    since: int
    description: str
    workshops: int


@dataclass(frozen=True, slots=True)
class Society:
    """The result of `make_society`."""

    people: tuple[Person, ...]
    firms: tuple[Firm, ...]
    buildings: tuple[Building, ...]
    events: tuple[Event, ...]
    crafts: tuple[Craft, ...]


def make_society(random: Random, towns: Sequence[Town]) -> Society:
    """Generate the society."""
    names = _names(random)
    people = _people(random, towns, names)
    firms, founders = _firms(random, towns, names)
    return Society(
        people=tuple(sorted([*people, *founders], key=lambda person: person.name)),
        firms=tuple(firms),
        buildings=tuple(_buildings(random, towns, [person for person in people if person.calling == "architect"])),
        events=tuple(_events(random, towns)),
        crafts=tuple(_crafts(random, towns)),
    )


def _names(random: Random) -> Iterator[str]:
    """Yield unique names."""
    firsts, lasts = list(FIRST_NAMES), list(LAST_NAMES)
    used: set[str] = set()
    while True:
        name = f"{random.choice(firsts)} {random.choice(lasts)}"
        if name not in used:
            used.add(name)
            yield name


def _people(random: Random, towns: Sequence[Town], names: Iterator[str]) -> list[Person]:
    made: list[Person] = []
    for town in towns:
        for calling in random.sample(sorted(_WORKS), _PER_TOWN):
            born = random.randint(1690, _LAST_BORN)
            title = f"The {random.choice(_TITLE_A)} {random.choice(_TITLE_B)}"
            known_for = random.choice(_WORKS[calling]).format(title=title)
            made.append(Person(next(names), born, _death(random, born), calling, town.name, known_for))
    return made


def _death(random: Random, born: int) -> int | None:
    died = born + random.randint(44, 93)
    return died if died < 2022 else None


def _firms(random: Random, towns: Sequence[Town], names: Iterator[str]) -> tuple[list[Firm], list[Person]]:
    firms: list[Firm] = []
    founders: list[Person] = []
    for brand in BRANDS:
        name = next(names)
        founded = random.randint(1786, 1994)
        born = founded - random.randint(23, 51)
        died = _death(random, born)
        seat = random.choice(towns).name
        trade = random.choice(sorted(_TRADES))
        style = random.choice(("{} & Sons", "{} Works", "{} Company", "{} Manufactory", "{} Brothers"))
        employees = random.randint(38, 4200)
        product = random.choice(_TRADES[trade])
        firms.append(Firm(brand, style.format(brand), name, founded, seat, trade, employees, product))
        died = None if died is None else max(died, founded + 1)
        home = random.choice(towns).name
        founders.append(Person(name, born, died, "founder", home, f"founding {style.format(brand)}"))
    return firms, founders


def _buildings(random: Random, towns: Sequence[Town], architects: Sequence[Person]) -> Iterator[Building]:
    for town in towns:
        kinds = _BUILDINGS | (_COASTAL_BUILDINGS if town.coastal else {})
        for kind in sorted(random.sample(sorted(kinds), 3)):
            what, first, last = kinds[kind]
            built = random.randint(max(first, min(last - 20, town.founded)), last)
            living = [a.name for a in architects if a.born + 26 <= built <= (a.died or 2021)]
            architect = random.choice(living) if living else ""
            height = random.randint(18, 74) if kind in _TALL else random.randint(7, 26)
            yield Building(f"{town.name} {kind}", what, town.name, built, architect, height)


def _events(random: Random, towns: Sequence[Town]) -> Iterator[Event]:
    for town in towns:
        since = random.randint(max(town.founded + 60, 1400), 1998)
        name = f"{town.name} {random.choice(_EVENTS)}"
        yield Event(name, town.name, random.choice(_MONTHS), since, random.randint(8, 480) * 100)


def _crafts(random: Random, towns: Sequence[Town]) -> Iterator[Craft]:
    for town in sorted(random.sample(list(towns), 52), key=lambda town: town.name):
        craft = random.choice(sorted(_CRAFTS))
        since = random.randint(max(town.founded + 40, 1380), 1890)
        yield Craft(f"{town.name} {craft}", town.name, since, _CRAFTS[craft], random.randint(2, 29))
