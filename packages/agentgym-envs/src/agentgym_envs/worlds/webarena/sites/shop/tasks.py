"""The shop's task templates."""

from __future__ import annotations

from agentgym_envs.worlds.webarena.sites.shop.tasks_buying import BUYING
from agentgym_envs.worlds.webarena.sites.shop.tasks_reading import READING
from agentgym_envs.worlds.webarena.sites.shop.tasks_starts import STARTING
from agentgym_envs.worlds.webarena.sites.shop.tasks_writing import WRITING

TEMPLATES = (*READING, *WRITING, *BUYING, *STARTING)
"""All templates in a fixed order."""
