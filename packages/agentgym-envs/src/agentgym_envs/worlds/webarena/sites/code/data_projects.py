"""Groups and projects of the code host with their members, labels, milestones and files."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random

from agentgym_envs.worlds.webarena.sites.code.data_files import write_files
from agentgym_envs.worlds.webarena.sites.code.data_people import HOSTS, JONAS, ssh_key
from agentgym_envs.worlds.webarena.sites.code.prose import Prose, moments, table

_JONAS_IN = {
    "mapwright/survey-app": 40,
    "wren-games/chess-clock": 40,
    "fieldnotes/transect": 40,
    "saltash-council/pothole": 40,
    "kiln-ci/flaky": 40,
    "orchard-tools/noted": 40,
    "quill-press/proof": 40,
    "northwold-rail/delay-board": 40,
    "tidal-labs/tide-tables": 30,
    "lumen-media/castbox": 30,
    "northwold-rail/journey": 30,
    "cloudberry/pulse": 30,
    "openledger/till": 30,
    "gridworks/battery-plan": 30,
    "mapwright/route-engine": 20,
    "kiln-ci/kiln-ui": 20,
}
"""Jonas's roles in projects of other owners."""
_JONAS_GROUP = "robotics-club"
_PRIVATE = {
    "jonas/budget-planner",
    "openledger/payroll",
    "harbor-sec/lockbox",
    "gridworks/meter-hub",
    "kiln-ci/shipyard",
}
_INTERNAL = {"jonas/dotfiles", "jonas/home-lights", "cloudberry/rollout", "robotics-club/line-follower"}
_NO_FORK = _PRIVATE | _INTERNAL
LABELS = (
    ("bug", "#c0392b", "Something does not work as it should"),
    ("feature", "#2c7a4b", "Something new"),
    ("documentation", "#2f5d8a", "Manual, examples, comments"),
    ("performance", "#b7791f", "Too slow or too large"),
    ("refactoring", "#6b4fa0", "No change of behaviour"),
    ("question", "#8a3d6f", "Needs an answer, not a patch"),
    ("regression", "#d35400", "It worked in an earlier version"),
    ("security", "#7b241c", "Handle with care"),
    ("good first issue", "#148f77", "A friendly start for newcomers"),
    ("needs info", "#616a6b", "Waiting for the reporter"),
    ("user interface", "#1f78b4", "What people see and touch"),
    ("blocked", "#34495e", "Waits for something else"),
)
_MILESTONES = ("Spring cleaning", "Field test", "Stability", "Summer release", "Autumn release", "Translations")


@dataclass
class Project:
    """The properties of a project that history and issues are generated from."""

    id: int
    where: str
    language: str
    components: list[str]
    created: datetime
    team: list[int]
    """Accounts that may push, the most active first."""
    friends: list[int]
    """Accounts that may not push, but open issues and comment."""
    labels: dict[str, int]
    milestones: dict[int, str]
    """State by milestone id."""
    files: dict[str, str] = field(default_factory=dict[str, str])
    """Content by path."""


def add_projects(db: sqlite3.Connection, random: Random, people: list[int], prose: Prose) -> list[Project]:
    """Write groups and projects with everything in them except history and issues."""
    teams = {path: _add_group(db, random, people, path, name, text) for path, name, text in table("groups.txt")}
    for number, name in enumerate(["jonas", *HOSTS]):
        teams[name] = [people[number], *random.sample(people[1:], 6)]
    return [_add_project(db, random, people, teams, prose, row) for row in table("projects.txt")]


def _add_group(db: sqlite3.Connection, random: Random, people: list[int], path: str, name: str, text: str) -> list[int]:
    created = moments(random, datetime(2020, 2, 1), datetime(2021, 1, 1), 1)[0]
    values = (path, name, text, "public", created)
    group = db.execute(
        "INSERT INTO groups (path, name, description, visibility, created) VALUES (?, ?, ?, ?, ?)", values
    ).lastrowid
    team = random.sample(people[1:], 12)
    if path == _JONAS_GROUP:
        team.insert(0, JONAS)
    for person, role in zip(team, (50, 40, 30, 20), strict=False):
        db.execute("INSERT INTO group_members VALUES (?, ?, ?, ?)", (group, person, role, created))
    return team


def _add_project(
    db: sqlite3.Connection, random: Random, people: list[int], teams: dict[str, list[int]], prose: Prose, row: list[str]
) -> Project:
    where, name, language, licence, topics, text, components = row
    namespace, path = where.split("/")
    created = datetime(2021, 1, 4) + timedelta(days=random.randrange(1000), minutes=random.randrange(480, 1200))
    visibility = "private" if where in _PRIVATE else "internal" if where in _INTERNAL else "public"
    stars = int(random.paretovariate(0.8) * 9) % 3000 + random.randrange(12)
    branch = "master" if random.random() < 0.15 else "main"
    values = (namespace, path, name, text, visibility, language, licence, stars, stars // random.randrange(7, 16))
    project = db.execute(
        "INSERT INTO projects (namespace, path, name, description, visibility, language, licence, stars, forks,"
        " default_branch, created, updated) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*values, branch, f"{created:%Y-%m-%d %H:%M}", f"{created:%Y-%m-%d %H:%M}"),
    ).lastrowid
    assert project is not None
    db.executemany("INSERT INTO topics VALUES (?, ?)", [(project, topic) for topic in topics.split(",")])
    db.execute("INSERT INTO branches VALUES (?, ?, ?)", (project, branch, f"{created:%Y-%m-%d %H:%M}"))
    team, friends = _add_members(db, random, people, teams[namespace], project, where, created)
    labels = _add_labels(db, random, project, everything=JONAS in team)
    milestones = _add_milestones(db, random, prose, project)
    if random.random() < 0.4:
        key = (project, random.choice(("Build server", "Mirror", "Web host")), ssh_key(random), random.randrange(2))
        db.execute(
            "INSERT INTO deploy_keys (project, title, key, can_push, created) VALUES (?, ?, ?, ?, '2024-05-06 11:00')",
            key,
        )
    made = Project(project, where, language, components.split(","), created, team, friends, labels, milestones)
    made.files = write_files(db, random, made, name, text, licence)
    return made


def _add_members(
    db: sqlite3.Connection,
    random: Random,
    people: list[int],
    team: list[int],
    project: int,
    where: str,
    created: datetime,
) -> tuple[list[int], list[int]]:
    """Write the members: the first of the team owns the project; Jonas joins if he has a role."""
    chosen = [team[0], *random.sample(team[1:], random.randrange(3, 6))]
    roles: dict[int, int] = dict(zip(chosen, (50, 40, 30, 30, 20, 20), strict=False))
    if where in _JONAS_IN:
        roles[JONAS] = _JONAS_IN[where]
    for person in random.sample(people[1:], 2):
        roles.setdefault(person, random.choice((10, 20, 30)))
    for person, role in roles.items():
        joined = created + timedelta(days=random.randrange(60))
        expires = random.choice(("2025-12-31", "2026-03-31")) if role < 40 and random.random() < 0.1 else None
        db.execute("INSERT INTO members VALUES (?, ?, ?, ?, ?)", (project, person, role, expires, f"{joined:%Y-%m-%d}"))
    pushing = [person for person, role in roles.items() if role >= 30]
    busiest = pushing[:1] + random.sample(pushing[1:], len(pushing) - 1) if random.random() < 0.6 else pushing[::-1]
    others = [person for person in random.sample(people[1:], 9) if person not in roles]
    return busiest, others + [person for person, role in roles.items() if role < 30]


def _add_labels(db: sqlite3.Connection, random: Random, project: int, *, everything: bool) -> dict[str, int]:
    count = len(LABELS) if everything else random.randrange(8, 12)
    made: dict[str, int] = {}
    for name, colour, text in LABELS[:count]:
        values = (project, name, colour, text)
        label = db.execute(
            "INSERT INTO labels (project, name, colour, description) VALUES (?, ?, ?, ?)", values
        ).lastrowid
        assert label is not None
        made[name] = label
    return made


def _add_milestones(db: sqlite3.Connection, random: Random, prose: Prose, project: int) -> dict[int, str]:
    major, minor = random.randrange(1, 4), random.randrange(2, 6)
    titles = [f"{major}.{minor + step}" for step in range(random.randrange(3, 5))] + random.sample(_MILESTONES, 1)
    start = datetime(2025, 1, 6) + timedelta(days=random.randrange(20))
    made: dict[int, str] = {}
    for iid, title in enumerate(titles, start=1):
        due = start + timedelta(days=random.randrange(40, 75))
        state = "closed" if due < datetime(2025, 6, 1) else "active"
        values = (project, iid, title, prose.say("milestone text"), f"{start:%Y-%m-%d}", f"{due:%Y-%m-%d}", state)
        milestone = db.execute(
            "INSERT INTO milestones (project, iid, title, description, start, due, state) VALUES (?, ?, ?, ?, ?, ?, ?)",
            values,
        ).lastrowid
        assert milestone is not None
        made[milestone] = state
        start = due + timedelta(days=1)
    return made


def add_forks(db: sqlite3.Connection, random: Random, projects: list[Project]) -> None:
    """Write forks in other namespaces, with the original's files and default branch."""
    sources = [project for project in projects if project.where not in _NO_FORK]
    for number, source in enumerate(random.sample(sources, 22)):
        owner = 1 + number % (1 + len(HOSTS))
        namespace = ["jonas", *HOSTS][owner - 1]
        if source.where.startswith(("jonas/", f"{namespace}/")):
            continue
        fork = db.execute(
            "INSERT INTO projects (namespace, path, name, description, visibility, language, licence, stars,"
            " default_branch, fork_of, created, updated) SELECT ?, path, name, description, 'public', language,"
            " licence, ?, default_branch, id, '2025-02-11 09:20', '2025-02-11 09:20' FROM projects WHERE id = ?",
            (namespace, random.randrange(4), source.id),
        ).lastrowid
        db.execute("INSERT INTO members VALUES (?, ?, 50, NULL, '2025-02-11')", (fork, owner))
        db.execute("INSERT INTO topics SELECT ?, topic FROM topics WHERE project = ?", (fork, source.id))
        db.execute("INSERT INTO files SELECT ?, path, content FROM files WHERE project = ?", (fork, source.id))
        db.execute("INSERT INTO branches SELECT ?, name, created FROM branches WHERE project = ?", (fork, source.id))
