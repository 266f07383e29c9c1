"""The task templates of the code host."""

from __future__ import annotations

from agentgym_envs.worlds.webarena.sites.code import (
    tasks_ask,
    tasks_files,
    tasks_issues,
    tasks_merges,
    tasks_people,
    tasks_projects,
)

TEMPLATES = (
    *tasks_ask.TEMPLATES,
    *tasks_issues.TEMPLATES,
    *tasks_merges.TEMPLATES,
    *tasks_projects.TEMPLATES,
    *tasks_people.TEMPLATES,
    *tasks_files.TEMPLATES,
)
"""All templates of the code host in a fixed order."""
