"""The forum's tasks."""

from __future__ import annotations

from agentgym_envs.sites.tasks import Template

TEMPLATES: tuple[Template, ...] = ()
