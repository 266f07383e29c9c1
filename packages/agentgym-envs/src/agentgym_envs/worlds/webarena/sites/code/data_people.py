"""The accounts of the code host and their keys, snippets, follows and stars."""

from __future__ import annotations

import base64
import sqlite3
from datetime import datetime
from random import Random

from agentgym_envs.worlds.webarena.sites.code.prose import Prose, moments
from agentgym_envs.worlds.webarena.sites.directory import PLACES
from agentgym_envs.worlds.webarena.sites.names import FIRST_NAMES, LAST_NAMES, TOWNS

JONAS = 1
"""Id of the account that an agent is signed in to."""
HOSTS = (
    "ada.lockwood",
    "theo.winslow",
    "nadia.thorne",
    "emil.hartley",
    "orla.redfern",
    "viggo.crane",
    "sylvie.nash",
    "ravi.ellery",
    "tilda.rowe",
)
"""Accounts that have projects in their own namespace."""
_PEOPLE = 250


def add_people(db: sqlite3.Connection, random: Random, prose: Prose) -> list[int]:
    """Write the accounts and return their ids: Jonas first, then the hosts."""
    account = PLACES["gitlab"].account
    assert account is not None
    db.execute(
        "INSERT INTO accounts (name, full_name, password, email, bio, job, location, status, created)"
        " VALUES (?, 'Jonas Merrick', ?, 'jonas@merrick.example', 'Weather, walks and web pages.',"
        " 'Software engineer', 'Fairhaven', '', '2020-03-02 10:15')",
        (account.name, account.password),
    )
    others = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
    random.shuffle(others)
    hosts = [name.replace(".", " ").title() for name in HOSTS]
    names = hosts + [name for name in others if name not in hosts][: _PEOPLE - 1 - len(hosts)]
    for name, created in zip(
        names, moments(random, datetime(2020, 1, 1), datetime(2024, 1, 1), len(names)), strict=True
    ):
        first, last = name.lower().split()
        host = random.choice(("post.example", "mail.example", f"{last}.example", "letters.example"))
        email = f"{first}@{host}" if host.startswith(last) else f"{first}.{last}@{host}"
        status = prose.say("status") if random.random() < 0.15 else ""
        person = (f"{first}.{last}", name, f"{last}-{random.randrange(100)}", email, prose.say("bio"))
        person += (prose.say("job"), random.choice(TOWNS), status, created)
        db.execute(
            "INSERT INTO accounts (name, full_name, password, email, bio, job, location, status, created)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            person,
        )
    return list(range(1, _PEOPLE + 1))


def add_people_details(db: sqlite3.Connection, random: Random, prose: Prose) -> None:
    """Write keys, snippets, stars and follows, which require people and projects."""
    people = range(1, _PEOPLE + 1)
    projects = [row[0] for row in db.execute("SELECT id FROM projects WHERE visibility = 'public' ORDER BY id")]
    contents = [
        row[0] for row in db.execute("SELECT content FROM files WHERE path LIKE 'src/%' ORDER BY project, path")
    ]
    for person in people:
        for other in random.sample(people, random.choice((0, 0, 1, 2, 4, 6))):
            if other != person:
                db.execute("INSERT INTO follows VALUES (?, ?)", (person, other))
        for project in random.sample(projects, random.choice((0, 1, 2, 3, 5))):
            db.execute("INSERT INTO stars VALUES (?, ?)", (person, project))
        if person == JONAS or random.random() < 0.3:
            title = random.choice(("Laptop", "Workstation", "Home server", "Old notebook"))
            key = (person, title, ssh_key(random), "2024-09-12 18:40")
            db.execute("INSERT INTO ssh_keys (account, title, key, created) VALUES (?, ?, ?, ?)", key)
    for number, created in enumerate(moments(random, datetime(2024, 1, 1), datetime(2025, 6, 10), 45)):
        person = JONAS if number % 9 == 4 else random.choice(people)
        title = prose.say_new("commit", c=random.choice(("parser", "timer", "exporter", "cache", "mailer")))
        snippet = (person, title, f"snippet_{number}.txt", random.choice(contents), "public", created)
        db.execute(
            "INSERT INTO snippets (account, title, file, content, visibility, created) VALUES (?, ?, ?, ?, ?, ?)",
            snippet,
        )


def ssh_key(random: Random) -> str:
    """Return a random public key, for which no private key exists."""
    body = b"\0\0\0\x0bssh-ed25519\0\0\0 " + random.randbytes(32)
    return f"ssh-ed25519 {base64.b64encode(body).decode()}"
