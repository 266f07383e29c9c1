"""Fills the code host's database: people, projects with their files, history and issues.

All data follows from the seed; all dates are before the frozen clock.
"""

from __future__ import annotations

import sqlite3
from random import Random

from agentgym_envs.worlds.webarena.sites.code.data_history import add_history
from agentgym_envs.worlds.webarena.sites.code.data_issues import add_issues, add_todos
from agentgym_envs.worlds.webarena.sites.code.data_people import add_people, add_people_details
from agentgym_envs.worlds.webarena.sites.code.data_projects import add_forks, add_projects
from agentgym_envs.worlds.webarena.sites.code.prose import Prose


def fill(db: sqlite3.Connection, random: Random) -> None:
    """Write all rows."""
    prose = Prose("prose.txt", random)
    people = add_people(db, random, prose)
    projects = add_projects(db, random, people, prose)
    add_forks(db, random, projects)
    for project in projects:
        add_history(db, random, project, prose)
        add_issues(db, random, project, prose)
    add_people_details(db, random, prose)
    add_todos(db, random)
