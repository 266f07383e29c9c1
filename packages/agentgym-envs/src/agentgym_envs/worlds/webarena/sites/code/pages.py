"""The pages of the code host.

All work without JavaScript, except the label and assignee pickers of an issue's page (its edit form does the same), the
file finder and the copy buttons.

The order of the imports is the order in which routes are matched: fixed words first, names of people and projects
last.
"""

from __future__ import annotations

# isort: off
from agentgym_envs.worlds.webarena.sites.code import account, dashboard, explore, creation
from agentgym_envs.worlds.webarena.sites.code import (
    issues,
    issue_edit,
    planning,
    merges,
    merge_new,
    repository,
    history,
    members,
    settings,
)
from agentgym_envs.worlds.webarena.sites.code import project, people
from agentgym_envs.worlds.webarena.sites.code.base import site

__all__ = [
    "account", "creation", "dashboard", "explore", "history", "issue_edit", "issues", "members", "merge_new", "merges",
    "people", "planning", "project", "repository", "settings", "site",
]  # fmt: skip
