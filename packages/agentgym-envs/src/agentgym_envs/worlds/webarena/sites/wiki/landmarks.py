"""Articles on rivers, hills, lakes and buildings."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentgym_envs.worlds.webarena.sites.region import NAME, Building, Hill, Lake, Region, River
from agentgym_envs.worlds.webarena.sites.wiki.article import Article, a, link, listed, number, to_county, to_town


def articles(region: Region, random: Random) -> Iterator[Article]:
    """Yield all of them."""
    for river in region.rivers:
        yield _river(region, river, random)
    for hill in region.hills:
        yield _hill(region, hill, random)
    for lake in region.lakes:
        yield _lake(region, lake, random)
    for building in region.buildings:
        yield _building(region, building, random)


def _river(region: Region, river: River, random: Random) -> Article:
    basin = river.length * random.randint(9, 19)
    flow = random.randint(14, 160)
    body = f"""The River {river.name} is a river in [[{NAME}]]. It rises in the western hills, is {river.length} km long
and reaches the sea at {to_town(river.mouth)}.{{{{Waterways Board, Gauging Tables, 2019.}}}}

== Course ==

From its source on it passes {listed([to_town(town) for town in river.towns])}. {
        random.choice(
            (
                "Its upper valley is narrow and wooded; below the last weir it is tidal.",
                "It falls most of its height in the first third of its way.",
                "In dry summers its upper course runs underground.",
                "Its lower course was straightened by the fen drainers.",
            )
        )
    }

== Hydrology ==

Its basin covers {number(basin)} km². At the mouth {flow} cubic metres pass each second on average."""
    box = (
        ("Length", f"{river.length} km"),
        ("Mouth", to_town(river.mouth)),
        ("Basin", f"{number(basin)} km²"),
        ("Mean flow", f"{flow} m³/s"),
    )
    return Article(f"River {river.name}", "river", body, box, ("Rivers",), (river.name,))


def _hill(region: Region, hill: Hill, random: Random) -> Article:
    county = region.town(hill.town).county
    climbed = random.randint(1740, 1880)
    climber = random.choice([person for person in region.people if person.calling in ("geologist", "botanist")])
    body = f"""{hill.name} is a hill of {hill.height} metres in {to_county(county)}, near {to_town(hill.town)}.

== Geology and plants ==

It consists of {random.choice(("grey granite", "dark slate", "coarse sandstone", "limestone with caves"))}. {
        random.choice(
            (
                "Bilberry and heather grow on its upper slopes.",
                "A wood of dwarf oaks covers its northern side.",
                "Its western side is bare scree.",
            )
        )
    }{{{{Survey of the Western Hills, sheet {random.randint(2, 60)}.}}}}

== Ascent ==

A beacon was first lit on its top in {climbed}. {link(climber.name)} described the view from it. Today a path leads up
from {to_town(hill.town)} in about {random.randint(2, 5)} hours."""
    box = (("Height", f"{hill.height} m"), ("County", to_county(county)), ("Nearest town", to_town(hill.town)))
    return Article(hill.name, "hill", body, box, ("Hills", f"Geography of {county}"))


def _lake(region: Region, lake: Lake, random: Random) -> Article:
    county = region.town(lake.town).county
    body = f"""{lake.name} is a lake of {lake.area} km² beside {to_town(lake.town)} in {to_county(county)}. It is
{lake.depth} metres deep.{{{{Waterways Board, Soundings, {random.randint(1890, 2015)}.}}}}

== Use ==

{
        random.choice(
            (
                "Ice was cut on it until 1931 and sold as far as the coast.",
                "A steamer crossed it from 1868 to 1954.",
                "Its perch were once a tax paid to the county seat.",
            )
        )
    } Bathing is allowed on the eastern shore."""
    box = (("Area", f"{lake.area} km²"), ("Depth", f"{lake.depth} m"), ("Town", to_town(lake.town)))
    return Article(lake.name, "lake", body, box, ("Lakes", f"Geography of {county}"))


def _building(region: Region, building: Building, random: Random) -> Article:
    county = region.town(building.town).county
    restored = random.randint(1955, 2018)
    by = f" to plans by {link(building.architect)}" if building.architect else ""
    known = "" if building.architect else " Its architect is not known."
    stone = random.choice(("limestone", "red brick", "grey granite", "flint", "yellow sandstone"))
    detail = random.choice(
        (
            "A sundial hangs above the main door.",
            "Swifts nest under its eaves every summer.",
            "Its cellar served as a store for cheese.",
            "A stone near the entrance shows the height of the last flood.",
            "Its plans were found in an attic a century later.",
            "The builders' marks can still be read on its northern side.",
        )
    )
    body = f"""{building.name} is {a(building.kind)} in {to_town(building.town)}, {to_county(county)}. It was built in
{building.built}{by} and is {building.height} metres high.{known}

== Architecture ==

It is of {stone}. {detail}{{{{Register of Listed Buildings, {county}, no. {random.randint(10, 999)}.}}}}

== Today ==

It was restored in {restored}. {
        random.choice(
            (
                "Guided tours start at the gate.",
                "Concerts are given in it.",
                "It is floodlit on holidays.",
                "A small exhibition tells its story.",
            )
        )
    }"""
    box = [("Kind", building.kind), ("Town", to_town(building.town)), ("Built", str(building.built))]
    if building.architect:
        box.append(("Architect", link(building.architect)))
    box += [("Height", f"{building.height} m"), ("Material", stone), ("Restored", str(restored))]
    kinds = f"{building.kind[0].upper()}{building.kind[1:]}"
    return Article(building.name, "building", body, tuple(box), (f"Buildings in {county}", f"{kinds} buildings"))
