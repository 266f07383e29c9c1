"""Lets others search over HTTP: any retriever behind Search-R1's `POST /retrieve`, so that one index serves many.

Knows no worlds, and not which server it is part of. Each request is answered by a thread of its own, as every retriever
allows; Lucene's worker makes batches of what comes at the same time.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, Field

from agentgym_envs.retrieval.passages import MAX_QUERY_CHARS, MAX_TOPK, Hit, Retriever
from agentgym_envs.text_env import EnvFault

MAX_QUERIES = 256
_TOPK = 3


class Question(BaseModel):
    """The body of `/retrieve`."""

    queries: Annotated[list[Annotated[str, Field(max_length=MAX_QUERY_CHARS)]], Field(max_length=MAX_QUERIES)]
    topk: Annotated[int, Field(ge=1, le=MAX_TOPK)] | None = None
    """How many passages each query gets; 3 where nothing is said."""
    return_scores: bool = False
    """With it each result is `{"document", "score"}`, else the document alone."""


def retrieval_router(retriever: Retriever) -> APIRouter:
    """`POST /retrieve`. Closing the retriever stays with the caller."""
    router = APIRouter()

    @router.post("/retrieve")
    def retrieve(question: Question) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        try:
            found = retriever.search(question.queries, question.topk or _TOPK)
        except EnvFault as fault:
            raise HTTPException(502, str(fault)) from fault
        return {"result": [[_entry(hit, question.return_scores) for hit in hits] for hits in found]}

    return router


def _entry(hit: Hit, scored: bool) -> dict[str, Any]:
    document = {"id": hit.passage.id, "contents": hit.passage.contents}
    return {"document": document, "score": hit.score} if scored else document
