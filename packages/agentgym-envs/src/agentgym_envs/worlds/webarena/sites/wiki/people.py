"""Articles on people, firms, festivals and crafts."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agentgym_envs.worlds.webarena.sites.region import NAME, Craft, Event, Firm, Person, Region
from agentgym_envs.worlds.webarena.sites.wiki.article import Article, a, link, number, to_county, to_firm, to_town

_MEDALS = ("Harrow Medal", "Coastal Prize", "Silver Quill", "Order of the Beacon", "Founders' Medal")


def articles(region: Region, random: Random) -> Iterator[Article]:
    """Yield all of them."""
    largest = sorted(region.towns, key=lambda town: -town.population)[:7]
    universities = [town.name for town in largest]
    for person in region.people:
        yield _person(region, person, universities, random)
    for firm in region.firms:
        yield _firm(region, firm, random)
    for event in region.events:
        yield _event(region, event, random)
    for craft in region.crafts:
        yield _craft(region, craft, random)


def _person(region: Region, person: Person, universities: list[str], random: Random) -> Article:
    first, last = person.name.split()
    died = f", died {person.died}" if person.died else ""
    is_was = "was" if person.died else "is"
    box = [("Born", f"{person.born}, {to_town(person.town)}")]
    if person.died:
        box.append(("Died", f"{person.died}, aged {person.died - person.born - random.randint(0, 1)}"))
    box += [("Occupation", person.calling), ("Known for", _known_for(region, person))]
    lead = (
        f"{person.name} (born {person.born} in {to_town(person.town)}{died}) {is_was} {a(person.calling)} "
        f"from [[{NAME}]], known for {_known_for(region, person)}."
    )
    years = f"{person.born}–{person.died or ''}"
    source = f"Lives of {NAME}, vol. {random.randint(1, 14)}, {last}, {first}."
    body = "\n\n".join(
        [
            lead,
            "== Life ==\n\n" + _early(region, person, universities, random),
            "== Work ==\n\n" + _work(region, person, random, box),
            f"== Legacy ==\n\n{_legacy(region, person, random)}{{{{{source}}}}}",
        ]
    )
    group = "Founders of firms" if person.calling == "founder" else _plural(person.calling)
    return Article(
        person.name,
        "person",
        body,
        tuple(box),
        ("People", group, f"People from {person.town}"),
        (f"{last}, {first} ({years})",),
    )


def _plural(calling: str) -> str:
    return f"{calling[0].upper()}{calling[1:]}s"


def _known_for(region: Region, person: Person) -> str:
    if person.calling != "founder":
        return person.known_for
    firm = next(firm for firm in region.firms if firm.founder == person.name)
    return f"founding {link(firm.name)}"


def _early(region: Region, person: Person, universities: list[str], random: Random) -> str:
    last = person.name.split()[1]
    parent = random.choice(
        ("a ferryman", "a schoolteacher", "a miller", "a draper", "a doctor", "a shepherd", "a clerk")
    )
    moved = person.born + random.randint(17, 22)
    where = random.choice([name for name in universities if name != person.town])
    other = random.choice([town.name for town in region.towns if town.name != person.town])
    school = random.choice(
        (
            f"From {moved} on {last} studied at the [[{_town(where)}|University of {where}]].",
            f"{last} left for {to_town(other)} in {moved} to learn a trade.",
            f"An aunt in {to_town(other)} took {last} in, who stayed there until {moved}.",
            f"A scholarship brought {last} to {to_town(where)} in {moved}.",
        )
    )
    return (
        f"{last} was the {random.choice(('first', 'second', 'third', 'only', 'youngest'))} child of {parent}. {school}"
    )


def _town(name: str) -> str:
    return to_town(name).strip("[]").split("|")[0]


def _work(region: Region, person: Person, random: Random, box: list[tuple[str, str]]) -> str:
    last = person.name.split()[1]
    end = min(person.died or 2024, person.born + 70)
    year = random.randint(person.born + 26, max(person.born + 27, end))
    year = min(year, end)
    medal = random.choice(_MEDALS)
    box.append(("Award", f"{medal} ({year})"))
    peer = random.choice([other for other in region.people if other.name != person.name])
    circle = (
        random.choice(
            (
                f"Letters to {link(peer.name)} have been published.",
                f"A quarrel with {link(peer.name)} is part of local lore.",
                f"{last} admired {link(peer.name)} and said so in print.",
                f"A portrait by an unknown hand shows {last} beside {link(peer.name)}.",
            )
        )
        if abs(peer.born - person.born) < 60
        else ""
    )
    begun = random.choice(
        ("Recognition came late", "Success came early", "The first years were hard", "Work went slowly")
    )
    honour = f"{begun}: {last} is remembered for {_known_for(region, person)}, and received the {medal} in {year}."
    return f"{honour} {circle}".strip()


def _legacy(region: Region, person: Person, random: Random) -> str:
    last = person.name.split()[1]
    other = random.choice(region.towns).name
    return random.choice(
        (
            f"A street in {to_town(other)} bears the name.",
            f"The library of {to_town(other)} keeps the papers.",
            f"A plaque in {to_town(person.town)} marks the house of the family.",
            f"A school in {to_town(other)} is named after {last}.",
            f"There is a small room about {last} in the museum of {to_town(other)}.",
        )
    )


def _firm(region: Region, firm: Firm, random: Random) -> Article:
    county = region.town(firm.seat).county
    first = random.choice(region.towns).name
    moved = random.randint(firm.founded + 3, min(firm.founded + 90, 2015))
    revenue = round(firm.employees * random.uniform(0.09, 0.2), 1)
    crisis = random.choice(
        (
            "A fire in the drying loft cost a year's stock.",
            "During a shortage of coal the works ran three days a week.",
            "It lived through the lean years by mending what others had made.",
            "A copy of its best piece, made abroad, nearly ruined it.",
        )
    )
    other = random.choice([one for one in region.firms if one.brand != firm.brand])
    lead = (
        f"{firm.name} is a maker of household goods from {to_town(firm.seat)} in {to_county(county)}. It was founded "
        f"in {firm.founded} by {link(firm.founder)} and sells under the brand {firm.brand}."
    )
    began = (
        f"The firm began with {firm.trade} in a rented yard in {to_town(first)}."
        if first != firm.seat
        else f"The firm began with {firm.trade} in a rented yard."
    )
    body = f"""{lead}

== History ==

{began} In {moved} it moved into its present works in {to_town(firm.seat)}.
{crisis}{{{{{firm.name}, Our First Years, {moved + 4}.}}}}

== Products ==

Its best-known product is {firm.product}. Over time it added goods of many other kinds. It competes with
{to_firm(region, other.brand)}.

== Figures ==

The firm has {number(firm.employees)} employees and had a revenue of {revenue} million crowns in
2024.{{{{Register of Firms, {county}, 2024.}}}}"""
    box = (
        ("Brand", firm.brand),
        ("Founded", str(firm.founded)),
        ("Founder", link(firm.founder)),
        ("Head office", to_town(firm.seat)),
        ("Began with", firm.trade),
        ("Best-known product", firm.product),
        ("Employees", number(firm.employees)),
        ("Revenue", f"{revenue} million crowns (2024)"),
    )
    return Article(firm.name, "firm", body, box, ("Firms", f"Firms in {county}"))


def _event(region: Region, event: Event, random: Random) -> Article:
    town = region.town(event.town)
    paused = random.randint(max(event.since + 5, 1914), 2004)
    custom = random.choice(
        (
            "It opens with three strokes of the town bell.",
            "The oldest inhabitant cuts a ribbon of willow bark.",
            "On the last evening lanterns are carried through the streets.",
            "A prize is given for the best loaf.",
            "Visitors are greeted with hot cider.",
            "The winners are carried to the market place on a door.",
        )
    )
    reason = random.choice(("the weather", "a strike", "repairs to the square", "an illness of cattle"))
    body = f"""The {event.name} is a festival in {to_town(event.town)}, {to_county(town.county)}, held every
{event.month} since {event.since}. About {number(event.visitors)} people come to it each year.

== Customs ==

{custom}{{{{Calendar of Customs, {town.county}, p. {random.randint(3, 140)}.}}}}

== History ==

It was first held in {event.since}. In {paused} it did not take place because of {reason}."""
    box = (
        ("Town", to_town(event.town)),
        ("Month", event.month),
        ("Since", str(event.since)),
        ("Visitors", f"about {number(event.visitors)}"),
    )
    return Article(event.name, "festival", body, box, ("Festivals", f"Festivals in {event.month}"))


def _craft(region: Region, craft: Craft, random: Random) -> Article:
    town = region.town(craft.town)
    guild = random.randint(craft.since + 5, craft.since + 80)
    shown = craft.name[0].upper() + craft.name[1:]
    body = f"""{shown} is {craft.description}, made in {to_town(craft.town)} since about {craft.since}.

== Making ==

{
        random.choice(
            (
                "The trade is learned in four years.",
                "Every workshop has a mark of its own.",
                "Masters keep their recipes in a common chest.",
                "Nothing made on a Sunday may be sold.",
            )
        )
    } {craft.workshops} workshops still make it.{{{{Trades of {town.county}, {random.randint(1968, 2022)}.}}}}

== History ==

A guild was formed in {guild}. Merchants carried its goods down to the coast, and copies were soon made elsewhere."""
    box = (
        ("Town", to_town(craft.town)),
        ("Since", str(craft.since)),
        ("Guild formed", str(guild)),
        ("Workshops", str(craft.workshops)),
    )
    return Article(shown, "craft", body, box, ("Crafts",))
