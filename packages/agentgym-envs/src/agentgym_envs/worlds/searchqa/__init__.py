"""SearchQA: answer questions by searching in passages, after Search-R1 (Jin et al. 2025, arXiv 2503.09516)."""

from agentgym_envs.worlds.searchqa.env import SearchQA
from agentgym_envs.worlds.searchqa.published import from_predecessor, to_predecessor

__all__ = ["SearchQA", "from_predecessor", "to_predecessor"]
