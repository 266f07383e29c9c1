"""WebArena (Zhou et al. 2023, arXiv 2307.13854): tasks on web sites, done in a real browser."""

from agentgym_envs.worlds.webarena.predecessor import from_predecessor, to_predecessor
from agentgym_envs.worlds.webarena.world import WebArena

__all__ = ["WebArena", "from_predecessor", "to_predecessor"]
