"""Tasks that write information from one site to another."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import groupby, product
from random import Random
from typing import Any

from agentgym_envs.worlds.webarena.sites.changes import changed, edited
from agentgym_envs.worlds.webarena.sites.cross_site.steps import (
    money,
    on_map,
    on_wiki,
    only_place,
    shuffled_towns,
    site,
    town_fact,
    towns,
)
from agentgym_envs.worlds.webarena.sites.directory import PLACES
from agentgym_envs.worlds.webarena.sites.region import region
from agentgym_envs.worlds.webarena.sites.tasks import Case, Databases, Step, Template, choose, click, fill, rows, stop
from agentgym_envs.worlds.webarena.sites.wiki.article import number, town_title

_OPEN_TO_ALL = ("history", "askcommons", "lifetips", "cycling", "camping", "photography")
_VISITED = ("museum", "library", "railway station", "university", "hospital", "post office")
_FACTS = {
    "mayor": "Mayor",
    "elevation": "Elevation",
    "market day": "Market day",
}


def _account(key: str) -> str:
    account = PLACES[key].account
    assert account is not None, f"{key} has no account; choose a site that has one"
    return account.name


def _posted(db: sqlite3.Connection, community: str, title: str, body: str) -> dict[str, Any]:
    """Judge that the member has written exactly this post and no other."""
    last = db.execute("SELECT max(id) FROM posts").fetchone()[0]
    query = (
        "SELECT c.name, p.title, trim(p.body) FROM posts AS p JOIN communities AS c ON c.id = p.community"
        f" JOIN accounts AS a ON a.id = p.author WHERE a.name = '{_account('reddit')}' AND p.id > {last}"
        " AND NOT p.deleted ORDER BY p.id"
    )
    return rows("reddit", query, (community, title, body))


def _post(community: str, title: str, body: str) -> list[Step]:
    return [
        site("reddit"),
        click("link", "Submit"),
        choose("Community", community),
        fill("textbox", "Title", title),
        fill("textbox", "Text", body),
        click("button", "Publish post"),
        stop(),
    ]


def _post_phone(databases: Databases, random: Random) -> Iterator[Case]:
    db = databases["forum"]
    names = {row["name"] for row in db.execute("SELECT name FROM communities")}
    for town in shuffled_towns(random):
        place = only_place(databases["map"], town.name, random.sample(_VISITED, len(_VISITED)))
        if place is not None and place["phone"]:
            community = town.name.lower() if town.name.lower() in names else random.choice(_OPEN_TO_ALL)
            title = f"Phone number of {place['name']}"
            plan = [
                *on_map(f"{place['kind']} in {town.name}")[1:],
                click("link", place["name"]),
                *_post(community, title, place["phone"]),
            ]
            values = {"kind": place["kind"], "town": town.name, "community": community, "title": title}
            yield Case(values, towns(town.name), _posted(db, community, title, place["phone"]), plan)


def _post_population(databases: Databases, random: Random) -> Iterator[Case]:
    db = databases["forum"]
    for town in shuffled_towns(random):
        community, title = random.choice(_OPEN_TO_ALL), f"How many people live in {town.name}"
        body = number(town.population)
        plan = [*on_wiki(town_title(town.name))[1:], *_post(community, title, body)]
        values = {"town": town.name, "community": community, "title": title}
        yield Case(values, towns(town.name), _posted(db, community, title, body), plan)


def _message_author(databases: Databases, random: Random) -> Iterator[Case]:
    """Message the author of a post about a fact of a town."""
    db = databases["forum"]
    last = db.execute("SELECT coalesce(max(id), 0) FROM messages").fetchone()[0]
    query = (
        "SELECT receiver.name, t.subject, trim(m.body) FROM messages AS m JOIN threads AS t ON t.id = m.thread"
        f" JOIN accounts AS receiver ON receiver.id = t.receiver WHERE m.id > {last} ORDER BY m.id"
    )
    for post in _posts(db, random):
        town = random.choice(region().towns)
        label = random.choice(sorted(_FACTS))
        answer = town_fact(databases["wiki"], town.name, _FACTS[label])
        subject = f"The {label} of {town.name}"
        plan = [
            *on_wiki(town_title(town.name))[1:],
            site("reddit"),
            fill("searchbox", "Search Commons", post["title"], enter=True),
            click("link", post["author"]),
            click("link", "Send message"),
            fill("textbox", "Subject", subject),
            fill("textbox", "Message", answer),
            click("button", "Send"),
            stop(),
        ]
        values = {"post": post["title"], "fact": label, "town": town.name, "subject": subject}
        wanted = rows("reddit", query, (post["author"], subject, answer))
        yield Case(values, towns(town.name) | {f"user:{post['author']}"}, wanted, plan)


def _posts(db: sqlite3.Connection, random: Random) -> list[sqlite3.Row]:
    """Return posts of other members that a search for their title identifies."""
    found = db.execute(
        "SELECT p.title, a.name AS author FROM posts AS p JOIN accounts AS a ON a.id = p.author"
        " WHERE a.name != ? AND NOT p.removed AND NOT p.deleted AND length(p.title) BETWEEN 18 AND 70"
        " AND p.title IN (SELECT title FROM posts GROUP BY title HAVING count(*) = 1)"
        " AND NOT EXISTS (SELECT 1 FROM blocks WHERE a.id IN (account, blocked)) ORDER BY p.id",
        (_account("reddit"),),
    ).fetchall()
    return [row for row in random.sample(found, 400) if not set('"“”’') & set(row["title"])]


def _own_projects(db: sqlite3.Connection, random: Random) -> list[sqlite3.Row]:
    found = db.execute(
        "SELECT * FROM projects WHERE namespace = ? AND NOT archived ORDER BY id", (_account("gitlab"),)
    ).fetchall()
    random.shuffle(found)
    return found


def _open_issue(databases: Databases, random: Random) -> Iterator[Case]:
    db = databases["code"]
    last = db.execute("SELECT max(id) FROM issues").fetchone()[0]
    query = (
        "SELECT p.namespace || '/' || p.path, i.title, trim(i.body) FROM issues AS i JOIN projects AS p"
        f" ON p.id = i.project WHERE i.id > {last} AND i.state = 'opened' ORDER BY i.id"  # a wrong one can be closed
    )
    projects = _own_projects(db, random)
    pairs = list(product(projects, shuffled_towns(random)))
    for project, town in random.sample(pairs, len(pairs)):
        label = random.choice(sorted(_FACTS))
        answer = town_fact(databases["wiki"], town.name, _FACTS[label])
        title, path = f"Add the {label} of {town.name}", f"{project['namespace']}/{project['path']}"
        plan = [
            *on_wiki(town_title(town.name))[1:],
            site("gitlab", f"/{path}/-/issues"),
            click("link", "New issue"),
            fill("textbox", "Title", title),
            fill("textbox", "Description", answer),
            click("button", "Create issue"),
            stop(),
        ]
        values = {"project": path, "title": title, "fact": label, "town": town.name}
        about = towns(town.name) | {f"project:{path}"}
        yield Case(values, about, rows("gitlab", query, (path, title, answer)), plan)


def _move_house(databases: Databases, random: Random) -> Iterator[Case]:
    """Set the location of the profile at the code host to the town of a brand's head office."""
    me = _account("gitlab")
    db = databases["code"]
    row = db.execute("SELECT * FROM accounts WHERE name = ?", (me,)).fetchone()
    for firm in random.sample(region().firms, len(region().firms)):
        if firm.seat == row["location"]:
            continue
        plan = [
            *on_wiki(firm.name)[1:],
            site("gitlab", "/-/profile"),
            fill("textbox", "Location", firm.seat),
            click("button", "Update profile"),
            stop(),
        ]
        wanted = edited(db, "gitlab", "account_contents", row["id"], location=firm.seat)
        yield Case({"brand": firm.brand}, frozenset({f"brand:{firm.brand}"}), wanted, plan)


def _new_address(databases: Databases, random: Random) -> Iterator[Case]:
    """Copy a hotel's address from the map to the address book."""
    hotels = databases["map"].execute("SELECT * FROM places WHERE kind = 'hotel' ORDER BY id").fetchall()
    for hotel in random.sample(hotels, len(hotels)):
        street = f"{hotel['number']} {hotel['street']}"
        plan = [
            *on_map(f"{hotel['name']} in {hotel['town']}")[1:],
            click("link", hotel["name"]),
            site("shopping", "/account"),
            click("link", "Address book"),
            click("link", "Add a new address"),
            fill("textbox", "Recipient", "Emma Holt"),
            fill("textbox", "Street and number", street),
            fill("textbox", "Postcode", hotel["postcode"]),
            fill("textbox", "Town", hotel["town"]),
            fill("textbox", "Telephone", hotel["phone"]),
            click("button", "Save address"),
            stop(),
        ]
        address = ("Emma Holt", street, hotel["postcode"], hotel["town"], hotel["phone"])
        wanted = changed("shopping", "address_contents", new=[(1, *address, 0, 1)])
        yield Case({"hotel": hotel["name"], "town": hotel["town"]}, towns(hotel["town"]), wanted, plan)


def _wish_for(databases: Databases, random: Random) -> Iterator[Case]:
    """Add the cheapest product of a brand, given only by its founder, to the wish list."""
    db = databases["shop"]
    wished = {row[0] for row in db.execute("SELECT product FROM wish_items")}
    for firm in random.sample(region().firms, len(region().firms)):
        sql = "SELECT *, coalesce(sale_price, price) AS cost FROM products WHERE brand = ? AND active ORDER BY cost"
        first, second = db.execute(sql, (firm.brand,)).fetchmany(2)
        if first["cost"] < second["cost"] and first["id"] not in wished:
            plan = [
                *on_wiki(firm.founder)[1:],
                click("link", firm.name),
                site("shopping", f"/brand/{firm.brand}"),
                choose("Sort by", "Price: low to high"),
                click("button", "Sort"),
                click("link", first["name"]),
                click("button", "Add to wish list"),
                stop(),
            ]
            entities = frozenset({f"brand:{firm.brand}"})
            wanted = changed("shopping", "wish_contents", new=[(1, first["id"], "")])
            yield Case({"founder": firm.founder}, entities, wanted, plan)


def _post_cheaper(databases: Databases, random: Random) -> Iterator[Case]:
    """Compare two products in the store and post the cheaper one in the forum."""
    goods = (
        databases["shop"]
        .execute("SELECT category, name, coalesce(sale_price, price) AS cost FROM products WHERE active ORDER BY 1, id")
        .fetchall()
    )
    shelves = [list(group) for _, group in groupby(goods, key=lambda row: row["category"])]
    for _ in range(3000):
        one, other = random.sample(random.choice(shelves), 2)
        if one["cost"] == other["cost"]:
            continue
        less = min(one, other, key=lambda row: row["cost"])
        title, community = f"{one['name']} or {other['name']}?", random.choice(("lifetips", "personalfinance"))
        body = f"{less['name']}: {money(less['cost'])}"
        plan = [
            fill("searchbox", "Search the store", one["name"], enter=True),
            fill("searchbox", "Search the store", other["name"], enter=True),
            *_post(community, title, body),
        ]
        values = {"a": one["name"], "b": other["name"], "community": community, "title": title}
        entities = frozenset({f"product:{one['name']}", f"product:{other['name']}"})
        yield Case(values, entities, _posted(databases["forum"], community, title, body), plan)


TEMPLATES = (
    Template(
        "across/post-phone",
        ("map", "reddit"),
        "Look up the phone number of the {{kind}} in {{town}} on Wayfinder, then post it on Commons in the community "
        '{{community}}: the title is "{{title}}", the text just the number.',
        _post_phone,
    ),
    Template(
        "across/post-population",
        ("wikipedia", "reddit"),
        'Post in the community {{community}} on Commons under the title "{{title}}". As the text put only the number '
        "of inhabitants of 2021 as Gazetteer writes it.",
        _post_population,
    ),
    Template(
        "across/message-author",
        ("wikipedia", "reddit"),
        'The author of the post "{{post}}" on Commons asked me for the {{fact}} of {{town}}. Look it up in Gazetteer '
        'and send them a message with the subject "{{subject}}" and just the {{fact}}, as written there, as the text.',
        _message_author,
    ),
    Template(
        "across/open-issue",
        ("wikipedia", "gitlab"),
        'Open an issue in {{project}} on Workbench with the title "{{title}}"; its description shall be just the '
        "{{fact}} of {{town}} as Gazetteer's table of facts has it.",
        _open_issue,
    ),
    Template(
        "across/move-house",
        ("wikipedia", "gitlab"),
        "I have moved to the town where the firm behind the brand {{brand}} has its head office. Find out which it is "
        "and change the location on my Workbench profile.",
        _move_house,
    ),
    Template(
        "across/new-address",
        ("map", "shopping"),
        "Add the address of {{hotel}} in {{town}} to my Larkspur address book, with Emma Holt as the recipient and the "
        "hotel's phone number. Wayfinder has it all; write the street as there, the number first.",
        _new_address,
    ),
    Template(
        "across/wish-for",
        ("wikipedia", "shopping"),
        "Gazetteer tells which firm {{founder}} founded, and under which brand it sells. Put the cheapest product of "
        "that brand at Larkspur on my wish list.",
        _wish_for,
    ),
    Template(
        "across/post-cheaper",
        ("shopping", "reddit"),
        "Which costs less at Larkspur at present, the {{a}} or the {{b}}? Post the answer in the community "
        '{{community}} on Commons with the title "{{title}}" and, as the text, the name of the cheaper one, a colon '
        "and its price, such as: Aldine Mug: $8.50",
        _post_cheaper,
        held_out=True,
    ),
)
