"""WebArena (Zhou et al. 2023, arXiv 2307.13854): tasks on web sites, done in a real browser."""

from agentgym_envs.worlds.webarena.agentgym_ids import from_predecessor, to_predecessor
from agentgym_envs.worlds.webarena.env import WebArena

__all__ = ["WebArena", "from_predecessor", "to_predecessor"]
