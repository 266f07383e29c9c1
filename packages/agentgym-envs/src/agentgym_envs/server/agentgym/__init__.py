"""AgentGym's protocol, so that AgentGym's client library works with this server.

The base URL is `/compat/WORLD` for AgentGym's own task numbers, and `/compat/WORLD/SPLIT` for indices into a split of
agentgym-envs. docs/compat.md lists the differences.
"""

from agentgym_envs.server.agentgym.routes import compat_router

__all__ = ["compat_router"]
