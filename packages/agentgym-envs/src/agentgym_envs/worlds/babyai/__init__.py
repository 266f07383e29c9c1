"""BabyAI (Chevalier-Boisvert et al. 2018, arXiv 1810.08272) as a text world: Minigrid's levels, told in sentences."""

from agentgym_envs.worlds.babyai.agentgym_ids import from_predecessor, to_predecessor
from agentgym_envs.worlds.babyai.env import BabyAI

__all__ = ["BabyAI", "from_predecessor", "to_predecessor"]
