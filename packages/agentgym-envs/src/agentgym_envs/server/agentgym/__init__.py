"""AgentGym's protocol, so that the client library of AgentGym works against this server.

Its base URL is `/compat/WORLD` for AgentGym's own numbers of tasks, and `/compat/WORLD/SPLIT` for places in our
splits. docs/compat.md says what is the same and what isn't.
"""

from agentgym_envs.server.agentgym.routes import compat_router

__all__ = ["compat_router"]
