"""Tasks about people: follows, and the account's own status, keys and to-do list."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from random import Random

from agentgym_envs.worlds.webarena.sites.changes import changed, edited
from agentgym_envs.worlds.webarena.sites.code.data_people import ssh_key
from agentgym_envs.worlds.webarena.sites.code.task_parts import about, ask, people, template, to_person, value
from agentgym_envs.worlds.webarena.sites.names import TOWNS
from agentgym_envs.worlds.webarena.sites.tasks import Case, click, fill, rows, said, stop

_STATUSES = ("Visiting", "At a workshop in", "On the train to", "On holiday in", "Moving to", "Giving a talk in")


@template("follow", "Follow {{person}}.")
def follow(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Find a profile and follow it."""
    before = [row[0] for row in db.execute("SELECT followed FROM follows WHERE follower = 1")]
    for row in people(db, random):
        if row["id"] in before:
            continue
        query = "SELECT followed FROM follows WHERE follower = 1 ORDER BY followed"
        done = rows("gitlab", query, *([person] for person in sorted([*before, row["id"]])))
        plan = [*to_person(row), click("button", "Follow"), stop()]
        yield Case({"person": row["full_name"]}, about(f"user:{row['name']}"), done, plan)


@template("mail-of", "Which e-mail address does {{person}} give on their profile?")
def mail_of(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Find an e-mail address on a profile."""
    for row in people(db, random):
        plan = [*to_person(row), stop(row["email"])]
        yield Case({"person": row["full_name"]}, about(f"user:{row['name']}"), said(row["email"]), plan)


@template("status", 'Set your status to "{{status}}".')
def status(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Set the status."""
    texts = [f"{way} {town}" for way in _STATUSES for town in TOWNS]
    random.shuffle(texts)
    for text in texts:
        plan = [click("link", "Your profile"), click("link", "Edit profile"), fill("textbox", "Your status", text)]
        done = edited(db, "gitlab", "account_contents", 1, status=text)
        yield Case({"status": text}, about(f"status:{text}"), done, [*plan, click("button", "Set status"), stop()])


@template("ssh-key", 'Add this SSH key to your account, with the title "{{title}}": {{key}}')
def add_ssh_key(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Add an SSH key."""
    for town in random.sample(TOWNS, len(TOWNS)):
        title, key = f"Machine in {town}", ssh_key(random)
        plan = [click("link", "Your profile"), click("link", "Edit profile"), click("link", "SSH keys")]
        plan += [fill("textbox", "Key", key), fill("textbox", "Title", title), click("button", "Add key"), stop()]
        done = changed("gitlab", "ssh_key_contents", new=[(1, title, key, 1)])
        yield Case({"title": title, "key": key}, about(f"name:{title}"), done, plan)


@template("todo-done", 'Mark the item "{{title}}" on your to-do list as done.')
def todo_done(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Press the right one of many buttons."""
    query = (
        "SELECT todos.id, coalesce(issues.title, merges.title) AS title, (SELECT count(*) FROM todos AS later"
        " WHERE later.account = 1 AND later.done = 0 AND later.created > todos.created) AS rank FROM todos"
        " LEFT JOIN issues ON issues.id = todos.issue LEFT JOIN merges ON merges.id = todos.merge"
        " WHERE done = 0 AND account = 1 ORDER BY todos.id"
    )
    open_items = value(db, "SELECT count(*) FROM todos WHERE account = 1 AND done = 0")
    for row in ask(db, random, query):
        plan = [click("link", "To-do list"), *([click("link", "Next")] if row["rank"] >= 15 else [])]
        plan += [click("button", f"Mark as done: {row['title']}"), stop()]
        left = "SELECT count(*) FROM todos WHERE account = 1 AND done = 0"
        check = f"SELECT done, ({left}) FROM todos WHERE id = {row['id']}"
        done = rows("gitlab", check, (1, open_items - 1))
        yield Case({"title": row["title"]}, about(f"issue:{row['title']}"), done, plan)


@template("followers", "How many followers does {{person}} have? Answer with the number alone.", held_out=True)
def followers(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Read the number of followers on a profile."""
    query = (
        "SELECT accounts.*, count(*) AS count FROM accounts JOIN follows ON followed = accounts.id"
        " WHERE accounts.id > 1 GROUP BY accounts.id HAVING count(*) > 3 ORDER BY accounts.id"
    )
    for row in ask(db, random, query):
        answer = str(row["count"])
        plan = [*to_person(row), stop(answer)]
        yield Case({"person": row["full_name"]}, about(f"user:{row['name']}"), said(exact=answer), plan)


TEMPLATES = (follow, mail_of, status, add_ssh_key, todo_done, followers)
