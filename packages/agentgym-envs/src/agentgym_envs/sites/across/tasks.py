"""What one may be asked to do that needs two or more of the sites."""

from __future__ import annotations

from agentgym_envs.sites.across.asked import TEMPLATES as ASKED
from agentgym_envs.sites.across.written import TEMPLATES as WRITTEN

TEMPLATES = (*ASKED, *WRITTEN)
