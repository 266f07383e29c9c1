"""The task templates that need two or more sites."""

from __future__ import annotations

from agentgym_envs.worlds.webarena.sites.cross_site.qa_tasks import TEMPLATES as ASKED
from agentgym_envs.worlds.webarena.sites.cross_site.write_tasks import TEMPLATES as WRITTEN

TEMPLATES = (*ASKED, *WRITTEN)
