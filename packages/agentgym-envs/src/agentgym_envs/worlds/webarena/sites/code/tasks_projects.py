"""Tasks that change projects: stars, forks, creation, settings, members."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import combinations
from random import Random

from agentgym_envs.worlds.webarena.sites.changes import changed, edited
from agentgym_envs.worlds.webarena.sites.code.data_people import ssh_key
from agentgym_envs.worlds.webarena.sites.code.task_parts import (
    about,
    ask,
    last,
    members,
    people,
    projects,
    template,
    to_project,
    value,
)
from agentgym_envs.worlds.webarena.sites.names import BRANDS, TOWNS
from agentgym_envs.worlds.webarena.sites.tasks import Case, choose, click, fill, rows, stop

_MEMBER = "SELECT * FROM member_contents WHERE project = ? AND account = ?"
_ROLES = {10: "Guest", 20: "Reporter", 30: "Developer", 40: "Maintainer"}


@template("star-top", "Star the {{count}} projects with the most stars among all that have the topic {{topic}}.")
def star_top(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Filter the list, then star the first few."""
    query = (
        "SELECT projects.* FROM projects JOIN topics ON project = id WHERE topic = ? AND"
        " (visibility <> 'private' OR namespace = 'jonas')"
        " ORDER BY stars DESC"
    )
    before = [row[0] for row in db.execute("SELECT project FROM stars WHERE account = 1 ORDER BY project")]
    for topic, count in ask(db, random, "SELECT DISTINCT topic, 2 + abs(length(topic) % 2) FROM topics ORDER BY topic"):
        found = db.execute(query, (topic,)).fetchall()
        first = [row for row in found[:count] if row["id"] not in before]
        tied = len(found) > count and found[count - 1]["stars"] == found[count]["stars"]
        if len(first) < count or tied:
            continue
        plan = [click("link", "Explore"), choose("Topic", topic), click("button", "Apply")]
        for row in first:
            plan += [click("link", f"{row['namespace']} / {row['name']}"), click("button", "Star")]
            if row is not first[-1]:
                plan += [click("link", "Explore"), choose("Topic", topic), click("button", "Apply")]
        after = sorted([*before, *(row["id"] for row in first)])
        done = rows("gitlab", "SELECT project FROM stars WHERE account = 1 ORDER BY project", *([id] for id in after))
        yield Case({"count": count, "topic": topic}, about(f"topic:{topic}"), done, [*plan, stop()])


@template("fork", "Fork {{project}} into your own namespace.")
def fork(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Fork a project."""
    for row in projects(
        db,
        random,
        0,
        "namespace <> 'jonas'",
    ):
        if value(db, "SELECT count(*) FROM projects WHERE namespace = 'jonas' AND path = ?", row["path"]):
            continue
        query = f"SELECT namespace, fork_of FROM projects WHERE id > {last(db, 'projects')}"
        plan = [*to_project(row), click("link", "Fork"), click("button", "Fork project"), stop()]
        made = rows("gitlab", query, ("jonas", row["project_id"]))
        yield Case({"project": row["place"]}, about(f"project:{row['place']}"), made, plan)


@template(
    "new-project",
    'Create a project named "{{name}}" with the visibility {{visibility}} under your own name, and let it begin with a '
    "README.",
)
def new_project(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Create a project."""
    names = [f"{brand} {kind}" for brand in BRANDS for kind in ("Notes", "Toolbox", "Playground", "Tracker")]
    random.shuffle(names)
    for name in names:
        visibility = random.choice(("private", "internal", "public"))
        plan = [click("link", "New project"), fill("textbox", "Project name", name)]
        plan += [click("radio", visibility.capitalize()), click("checkbox", "Initialize repository with a README")]
        plan += [click("button", "Create project"), stop()]
        query = (
            "SELECT namespace, name, visibility, (SELECT count(*) FROM files WHERE project = projects.id"
            f" AND path = 'README.md') FROM projects WHERE id > {last(db, 'projects')}"
        )
        made = rows("gitlab", query, ("jonas", name, visibility, 1))
        yield Case({"visibility": visibility, "name": name}, about(f"name:{name}"), made, plan)


@template("visibility", "Change the visibility of {{project}} to {{visibility}}.")
def visibility(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Change the visibility."""
    for row in [row for _ in range(2) for row in projects(db, random, 40)]:
        wanted = random.choice([name for name in ("private", "internal", "public") if name != row["visibility"]])
        plan = [*to_project(row), click("link", "Settings"), click("radio", wanted.capitalize())]
        plan += [click("button", "Save visibility"), stop()]
        done = edited(db, "gitlab", "project_contents", row["project_id"], visibility=wanted)
        yield Case({"project": row["place"], "visibility": wanted}, about(f"project:{row['place']}"), done, plan)


@template("add-topic", "Add the topic {{topic}} to {{project}} and keep those it has.")
def add_topic(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Add to a setting that is a list."""
    for row in [row for _ in range(2) for row in projects(db, random, 40)]:
        topic = random.choice(("hacktoberfest", "beginner-friendly", "looking-for-help", "weekend", "workshop"))
        query = f"SELECT topic FROM topics WHERE project = {row['project_id']} ORDER BY topic"
        before = [found[0] for found in db.execute(query)]
        plan = [*to_project(row), click("link", "Settings")]
        plan += [fill("textbox", "Topics (with commas between)", ", ".join([*before, topic]))]
        plan += [click("button", "Save naming and topics"), stop()]
        after = ",".join(sorted([*before, topic]))
        done = edited(db, "gitlab", "project_contents", row["project_id"], topics=after)
        yield Case({"topic": topic, "project": row["place"]}, about(f"project:{row['place']}"), done, plan)


@template("invite", "Invite {{person}} to {{project}} as {{role}}; the access shall expire on {{expires}}.")
def invite(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Invite a member."""
    for row in [row for _ in range(2) for row in projects(db, random, 40)]:
        inside = [member["id"] for member in members(db, row["project_id"])]
        person = next(person for person in people(db, random) if person["id"] not in inside)
        role, expires = random.choice((20, 30, 40)), f"2025-{random.randrange(8, 13):02}-{random.randrange(1, 29):02}"
        plan = [
            *to_project(row),
            click("link", "Members"),
            fill("textbox", "User name, full name or e-mail", person["full_name"]),
            choose("Role", _ROLES[role]),
            fill("textbox", "Access expires on (YYYY-MM-DD, may be empty)", expires),
            click("button", "Invite"),
            stop(),
        ]
        done = changed("gitlab", "member_contents", new=[(row["project_id"], person["id"], role, expires)])
        values = {"person": person["full_name"], "project": row["place"], "role": _ROLES[role], "expires": expires}
        yield Case(values, about(f"project:{row['place']}"), done, plan)


@template("change-role", "Make {{person}} a {{role}} of {{project}}.")
def change_role(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Change a member's role."""
    for row in [row for _ in range(2) for row in projects(db, random, 40)]:
        person = random.choice([member for member in members(db, row["project_id"]) if member["role"] < 50])
        role = random.choice([role for role in _ROLES if role != person["role"]])
        before = db.execute(_MEMBER, (row["project_id"], person["id"])).fetchone()
        after = (row["project_id"], person["id"], role, before["expires"])
        done = changed("gitlab", "member_contents", new=[after], old=[tuple(before)])
        plan = [*to_project(row), click("link", "Members"), choose(f"Role of {person['full_name']}", _ROLES[role])]
        plan += [click("button", f"Save role of {person['full_name']}"), stop()]
        values = {"person": person["full_name"], "role": _ROLES[role], "project": row["place"]}
        yield Case(values, about(f"project:{row['place']}"), done, plan)


@template("remove-member", "{{person}} has left. Remove them from the members of {{project}}.", held_out=True)
def remove_member(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Remove a member."""
    for row in projects(db, random, 40):
        for person in [member for member in members(db, row["project_id"]) if member["role"] < 50][:3]:
            before = db.execute(_MEMBER, (row["project_id"], person["id"])).fetchone()
            done = changed("gitlab", "member_contents", old=[tuple(before)])
            plan = [
                *to_project(row),
                click("link", "Members"),
                click("button", f"Remove {person['full_name']}"),
                stop(),
            ]
            values = {"person": person["full_name"], "project": row["place"]}
            entity = about(f"member:{row['place']}/{person['name']}")
            yield Case(values, entity, done, plan)


@template("deploy-key", 'Add the deploy key "{{key}}" with the title "{{title}}" to {{project}}; it may read only.')
def deploy_key(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Add a deploy key with a small form far down the page."""
    for row in [row for _ in range(2) for row in projects(db, random, 40)]:
        title, key = f"Server in {random.choice(TOWNS)}", ssh_key(random)
        plan = [*to_project(row), click("link", "Settings"), fill("textbox", "Deploy key title", title)]
        plan += [fill("textbox", "Deploy key", key), click("button", "Add deploy key"), stop()]
        values = {"key": key, "title": title, "project": row["place"]}
        done = changed("gitlab", "deploy_key_contents", new=[(row["project_id"], title, key, 0, 1)])
        yield Case(values, about(f"project:{row['place']}"), done, plan)


@template("new-group", 'Create a private group named "{{name}}" and add {{first}} and {{second}} to it as {{role}}.')
def new_group(db: sqlite3.Connection, random: Random) -> Iterator[Case]:
    """Create a group, then invite two members."""
    chosen = people(db, random)[:24]
    pairs = list(combinations(chosen, 2))
    for town in random.sample(TOWNS, len(TOWNS)):
        (first, second), role = random.choice(pairs), random.choice((20, 30, 40))
        name = f"{town} Makers"
        plan = [click("link", "Groups"), click("link", "New group"), fill("textbox", "Group name", name)]
        plan += [click("button", "Create group"), click("link", "1 member")]
        for person in (first, second):
            plan += [fill("textbox", "User name, full name or e-mail", person["full_name"])]
            plan += [choose("Role", _ROLES[role]), click("button", "Invite")]
        query = (
            "SELECT groups.name, visibility, account, role FROM groups JOIN group_members ON group_id = groups.id"
            f" WHERE groups.id > {last(db, 'groups')} ORDER BY account"
        )
        inside = sorted([(1, 50), (first["id"], role), (second["id"], role)])
        made = rows("gitlab", query, *((name, "private", *member) for member in inside))
        values = {"name": name, "first": first["full_name"], "second": second["full_name"], "role": _ROLES[role]}
        yield Case(values, about(f"name:{name}"), made, [*plan, stop()])


TEMPLATES = (
    *(star_top, fork, new_project, visibility, add_topic, invite, change_role, remove_member, deploy_key, new_group),
)
