"""Passage retrieval: the `Passage` and `Hit` types, the `Retriever` protocol of all backends, and `open_retriever`.

Does not depend on environments or questions.
"""

from agentgym_envs.retrieval.passages import Hit, Passage, Retriever
from agentgym_envs.retrieval.specs import check_spec, open_retriever

__all__ = ["Hit", "Passage", "Retriever", "check_spec", "open_retriever"]
