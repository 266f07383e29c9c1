"""Search in passages: what is found, the one protocol that all backends keep, and `open_retriever`, which opens one.

Knows no world and no questions.
"""

from agentgym_envs.retrieval.passages import Hit, Passage, Retriever
from agentgym_envs.retrieval.specs import check_spec, open_retriever

__all__ = ["Hit", "Passage", "Retriever", "check_spec", "open_retriever"]
