"""The forum's task templates: questions, navigation, writing, the visitor's own data, moderation, pictures."""

from __future__ import annotations

from agentgym_envs.worlds.webarena.sites.forum import (
    tasks_asking,
    tasks_finding,
    tasks_keeping,
    tasks_moderating,
    tasks_pictures,
    tasks_writing,
)
from agentgym_envs.worlds.webarena.sites.tasks import Template

TEMPLATES: tuple[Template, ...] = (
    *tasks_asking.TEMPLATES,
    *tasks_finding.TEMPLATES,
    *tasks_writing.TEMPLATES,
    *tasks_keeping.TEMPLATES,
    *tasks_moderating.TEMPLATES,
    *tasks_pictures.TEMPLATES,
)
