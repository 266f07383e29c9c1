"""An expert's queries find the passages that the answer takes, through the embedded retriever."""

from __future__ import annotations

import pytest
from agentgym_envs.retrieval import open_retriever
from agentgym_envs.worlds.searchqa.almanac import questions


@pytest.mark.long
def test_the_queries_of_500_test_questions_find_their_passages_among_the_first_three() -> None:
    retriever = open_retriever("bm25")
    some = questions("test")[:500]
    found = 0
    for q in some:
        hits = retriever.search(q.queries, 3)
        found += all(s in {h.passage.id for h in own} for s, own in zip(q.support, hits, strict=True))
    retriever.close()
    assert found >= 0.97 * len(some)
