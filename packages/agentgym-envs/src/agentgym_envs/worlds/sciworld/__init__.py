"""ScienceWorld (Wang et al. 2022, arXiv 2203.07540): elementary science in a house of ten places, played in text."""

from agentgym_envs.worlds.sciworld.env import SciWorld
from agentgym_envs.worlds.sciworld.tasks import from_predecessor, to_predecessor

__all__ = ["SciWorld", "from_predecessor", "to_predecessor"]
