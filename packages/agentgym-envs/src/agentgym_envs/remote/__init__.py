"""Worlds on other machines: the client of our HTTP server, as an environment and as slots of a pool.

Knows the protocol (`/v1`) and nothing of how a server is made.
"""

from importlib.util import find_spec

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.util.installation import install

if find_spec("httpx") is None:
    raise DependencyNotInstalled(
        f"Worlds on servers need the package httpx. Install it: {install('agentgym-envs[remote]')}"
    )
