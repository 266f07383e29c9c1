"""The encyclopedia's task templates."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from random import Random
from urllib.parse import quote

from agentgym_envs.worlds.webarena.sites.directory import PLACES
from agentgym_envs.worlds.webarena.sites.region import Town, region
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, Step, Template, at, click, fill, said, stop
from agentgym_envs.worlds.webarena.sites.wiki.article import number, town_title
from agentgym_envs.worlds.webarena.sites.wiki.finding import article_id, find
from agentgym_envs.worlds.webarena.sites.wiki.markup import plain

_URL = PLACES["wikipedia"].url
_TOWN_FACTS = {
    "Mayor": "Who is the mayor",
    "Elevation": "At which elevation is the centre",
    "Market day": "On which weekday is the market",
    "Area": "How many square kilometres is the area",
}
_BUILDING_FACTS = {
    "Material": "Of what material is it built?",
    "Restored": "When was it restored?",
    "Height": "How high is it?",
}


def look_up(title: str) -> Step:
    """Type a title into the search box, which redirects to the article."""
    return fill("searchbox", "Search Gazetteer", title, enter=True)


def facts(db: sqlite3.Connection, title: str) -> dict[str, str]:
    """Return an article's infobox as plain text."""
    row = db.execute("SELECT infobox FROM articles WHERE id = ?", (article_id(db, title),)).fetchone()
    return {label: plain(value) for label, value in json.loads(row["infobox"])}


def mayors(db: sqlite3.Connection) -> list[str]:
    """Return the mayors of all towns."""
    return [facts(db, town_title(town.name))["Mayor"] for town in region().towns]


def article_url(title: str) -> str:
    """Return the URL of an article."""
    return f"{_URL}/wiki/{quote(title.replace(' ', '_'), safe='(),')}"


def _towns(random: Random) -> list[Town]:
    towns = list(region().towns)
    random.shuffle(towns)
    return towns


def _town(*names: str) -> frozenset[str]:
    return frozenset(f"town:{name}" for name in names)


def _town_fact(databases: Databases, random: Random) -> Iterator[Case]:
    for town in _towns(random):
        label = random.choice(sorted(_TOWN_FACTS))
        answer = facts(databases["wiki"], town_title(town.name))[label]
        values = {"question": _TOWN_FACTS[label], "town": town.name}
        plan = [look_up(town_title(town.name)), stop(number := answer.removesuffix(" m").removesuffix(" km²"))]
        yield Case(values, _town(town.name), said(exact=number), plan)


def _birthplace_of_founder(databases: Databases, random: Random) -> Iterator[Case]:
    land = region()
    homes = {person.name: person.town for person in land.people}
    for firm in random.sample(land.firms, len(land.firms)):
        plan = [look_up(firm.name), click("link", firm.founder), stop(homes[firm.founder])]
        judged = said(homes[firm.founder], rivals=(town.name for town in land.towns))
        yield Case({"brand": firm.brand}, frozenset({f"brand:{firm.brand}"}), judged, plan)


def _firm_of_town(databases: Databases, random: Random) -> Iterator[Case]:
    land = region()
    for town in _towns(random):
        firms = [firm for firm in land.firms if firm.seat == town.name]
        if len(firms) == 1:
            plan = [look_up(town_title(town.name)), click("link", firms[0].name), stop(firms[0].founder)]
            judged = said(firms[0].founder, rivals=(firm.founder for firm in land.firms))
            yield Case({"town": town.name}, _town(town.name), judged, plan)


def _age_of_architect(databases: Databases, random: Random) -> Iterator[Case]:
    land = region()
    born = {person.name: person.born for person in land.people}
    seen: set[str] = set()
    for building in random.sample(land.buildings, len(land.buildings)):
        if building.architect and building.architect not in seen:
            seen.add(building.architect)
            plan = [look_up(building.name), click("link", building.architect), stop(str(born[building.architect]))]
            answer = said(exact=str(born[building.architect]))
            yield Case({"building": building.name}, _town(building.town), answer, plan)


def _award(databases: Databases, random: Random) -> Iterator[Case]:
    people = region().people
    awards = {person.name: facts(databases["wiki"], person.name)["Award"] for person in people}
    names = {award.split(" (")[0] for award in awards.values()}
    for person in random.sample(people, len(people)):
        award = awards[person.name]
        name, year = award.removesuffix(")").split(" (")
        plan = [look_up(person.name), stop(award)]
        values = {"person": person.name, "calling": person.calling}
        yield Case(values, frozenset({f"person:{person.name}"}), said(name, year, rivals=names), plan)


def _oldest_building(databases: Databases, random: Random) -> Iterator[Case]:
    land = region()
    for town in _towns(random):
        buildings = sorted((one for one in land.buildings if one.town == town.name), key=lambda one: one.built)
        if buildings[0].built == buildings[1].built:
            continue
        label = random.choice(sorted(_BUILDING_FACTS))
        answer = facts(databases["wiki"], buildings[0].name)[label].removesuffix(" m")
        plan = [look_up(town_title(town.name)), click("link", buildings[0].name), stop(answer)]
        values = {"town": town.name, "question": _BUILDING_FACTS[label]}
        yield Case(values, _town(town.name), said(exact=answer), plan)


def _festival(databases: Databases, random: Random) -> Iterator[Case]:
    land = region()
    for event in random.sample(land.events, len(land.events)):
        plan = [look_up(town_title(event.town)), click("link", event.name), stop()]
        yield Case({"town": event.town}, _town(event.town), at(article_url(event.name)), plan)


def _links_here(databases: Databases, random: Random) -> Iterator[Case]:
    land = region()
    named = [(person.name, f"person:{person.name}") for person in land.people]
    named += [(firm.name, f"brand:{firm.brand}") for firm in land.firms]
    random.shuffle(named)
    for title, entity in named:
        plan = [look_up(title), click("link", "What links here"), stop()]
        address = f"{_URL}/links/{title.replace(' ', '_').replace('&', '%26')}"
        yield Case({"title": title}, frozenset({entity}), at(address), plan)


def _people_from(databases: Databases, random: Random) -> Iterator[Case]:
    """Open a town's category of people, which the articles of people born there link to."""
    land = region()
    for town in _towns(random):
        first = min((one for one in land.people if one.town == town.name), key=lambda one: one.born)
        name = f"People from {town.name}"
        plan = [look_up(town_title(town.name)), click("link", first.name), click("link", name), stop()]
        url = f"{_URL}/category/{name.replace(' ', '_')}"
        yield Case({"town": town.name}, _town(town.name), at(url), plan)


def _meaning(databases: Databases, random: Random) -> Iterator[Case]:
    """Search for a last name alone, which leads to a page of several people or to search results."""
    db = databases["wiki"]
    people = region().people
    for person in random.sample(people, len(people)):
        last = person.name.split()[1]
        same = [one for one in people if one.name.split()[1] == last and one.calling == person.calling]
        found = article_id(db, last)
        row = db.execute("SELECT kind FROM articles WHERE id = ?", (found,)).fetchone()
        if len(same) == 1 and row is not None and row["kind"] == "disambiguation":
            plan = [look_up(last), click("link", person.name), stop()]
            values = {"calling": person.calling, "last": last}
            yield Case(values, frozenset({f"person:{person.name}"}), at(article_url(person.name)), plan)


def _medal(databases: Databases, random: Random) -> Iterator[Case]:
    """Find a person by the words of the text; no list contains the fact."""
    db = databases["wiki"]
    people = region().people
    awards = {person.name: facts(db, person.name)["Award"] for person in people}
    for person in random.sample(people, len(people)):
        award = awards[person.name]
        name, year = award.removesuffix(")").split(" (")
        query = f"{person.calling} {name} {year}"
        others = [one for one in people if awards[one.name] == award and one.calling == person.calling]
        first = [found.title for found in find(db, query)[:12]]
        if len(others) == 1 and person.name in first and article_id(db, query) is None:
            plan = [look_up(query), click("link", person.name), stop(person.name)]
            values = {"calling": person.calling, "award": name, "year": year}
            yield Case(values, frozenset({f"person:{person.name}"}), said(person.name, rivals=awards), plan)


def _smallest_of_three(databases: Databases, random: Random) -> Iterator[Case]:
    towns = list(region().towns)
    for _ in range(3000):
        three = random.sample(towns, 3)
        least = min(three, key=lambda town: town.population)
        values = {letter: town.name for letter, town in zip("abc", three, strict=True)}
        answer = f"{least.name}, {number(least.population)}"
        plan = [look_up("List of towns by population"), stop(answer)]
        judged = said(least.name, number(least.population), rivals=values.values())
        yield Case(values, _town(*(town.name for town in three)), judged, plan)


def _rank(databases: Databases, random: Random) -> Iterator[Case]:
    land = region()
    ranked = sorted(land.towns, key=lambda town: -town.population)
    others = [town.name for town in land.towns] + mayors(databases["wiki"])
    for rank, town in random.sample(list(enumerate(ranked, start=1)), len(ranked)):
        mayor = facts(databases["wiki"], town_title(town.name))["Mayor"]
        plan = [
            click("link", "List of towns by population"),
            click("link", town.name),
            stop(f"{town.name}, {mayor}"),
        ]
        yield Case({"rank": rank}, _town(town.name), said(town.name, mayor, rivals=others), plan)


TEMPLATES = (
    Template(
        "wiki/town-fact",
        ("wikipedia",),
        "{{question}} of {{town}}, according to Gazetteer? Answer with that alone, without a unit.",
        _town_fact,
    ),
    Template(
        "wiki/birthplace-of-founder",
        ("wikipedia",),
        "In which town was the founder of the firm behind the brand {{brand}} born?",
        _birthplace_of_founder,
    ),
    Template(
        "wiki/firm-of-town", ("wikipedia",), "One firm has its head office in {{town}}. Who founded it?", _firm_of_town
    ),
    Template(
        "wiki/architect",
        ("wikipedia",),
        "In which year was the architect of {{building}} born? Answer with the year alone.",
        _age_of_architect,
    ),
    Template(
        "wiki/award", ("wikipedia",), "Which award did the {{calling}} {{person}} receive, and in which year?", _award
    ),
    Template(
        "wiki/oldest-building",
        ("wikipedia",),
        "Find the oldest of the buildings listed among the sights of {{town}}. {{question}} Answer with that "
        "alone, without a unit.",
        _oldest_building,
    ),
    Template("wiki/festival", ("wikipedia",), "Show me the article about the festival of {{town}}.", _festival),
    Template("wiki/links-here", ("wikipedia",), "Show me which articles link to {{title}}.", _links_here),
    Template("wiki/people-from", ("wikipedia",), "Open the category of people from {{town}}.", _people_from),
    Template("wiki/meaning", ("wikipedia",), "Open the article about the {{calling}} named {{last}}.", _meaning),
    Template(
        "wiki/medal",
        ("wikipedia",),
        "Who was the {{calling}} that received the {{award}} in {{year}}?",
        _medal,
        held_out=True,
    ),
    Template(
        "wiki/smallest-of-three",
        ("wikipedia",),
        "Which of the towns {{a}}, {{b}} and {{c}} has the fewest inhabitants, and how many are they?",
        _smallest_of_three,
        held_out=True,
    ),
    Template(
        "wiki/rank",
        ("wikipedia",),
        "Which town is number {{rank}} by population, and who is its mayor?",
        _rank,
        held_out=True,
    ),
)
