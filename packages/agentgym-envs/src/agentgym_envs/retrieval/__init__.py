"""Search in passages: what is found, and the one protocol that all backends keep.

Knows no world and no questions.
"""

from agentgym_envs.retrieval.passages import Hit, Passage, Retriever

__all__ = ["Hit", "Passage", "Retriever"]
