"""Environments on servers: the client of the HTTP server, as an environment and as slots of a pool.

It depends on the protocol (`/v1`) only, not on the server's code.
"""

from importlib.util import find_spec

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.util.installation import install

if find_spec("httpx") is None or find_spec("sniffio") is None:
    raise DependencyNotInstalled(
        f"Environments on servers need the packages httpx and sniffio. Install them: {install('agentgym-envs[remote]')}"
    )
