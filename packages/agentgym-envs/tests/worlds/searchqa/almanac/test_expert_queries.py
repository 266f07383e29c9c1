"""Tests that the expert's queries find the supporting passages with the embedded retriever."""

from __future__ import annotations

import pytest
from agentgym_envs.retrieval import open_retriever
from agentgym_envs.worlds.searchqa.almanac import questions


@pytest.mark.long
def test_expert_queries_find_support_among_the_first_three() -> None:
    retriever = open_retriever("bm25")
    sample = questions("test")[:500]
    found = 0
    for q in sample:
        hits = retriever.search(q.queries, 3)
        found += all(s in {h.passage.id for h in own} for s, own in zip(q.support, hits, strict=True))
    retriever.close()
    assert found >= 0.97 * len(sample)
