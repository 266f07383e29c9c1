"""BabyAI (Chevalier-Boisvert et al. 2018, arXiv 1810.08272) as a text world: Minigrid's levels, told in sentences."""

from agentgym_envs.worlds.babyai.agentgym import from_agentgym, to_agentgym
from agentgym_envs.worlds.babyai.world import BabyAI

__all__ = ["BabyAI", "from_agentgym", "to_agentgym"]
