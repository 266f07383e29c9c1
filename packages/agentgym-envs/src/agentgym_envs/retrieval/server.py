"""Lets others search over HTTP: any retriever behind Search-R1's `POST /retrieve`, so that one index serves many.

Knows no worlds, and not which server it is part of. Each request is answered by a thread of its own, as every retriever
allows; Lucene's worker makes batches of what comes at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, BeforeValidator, Field

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.retrieval.passages import MAX_TOPK, Hit, Retriever, sendable

_TOPK = 3
_BATCH = 256
"""How many queries one search of the retriever gets, so that a large request doesn't hold up the others."""


def _heard(query: object) -> object:
    return sendable(query) if isinstance(query, str) else query


class Question(BaseModel):
    """The body of `/retrieve`."""

    queries: list[Annotated[str, BeforeValidator(_heard)]]
    """Each is cut to its first 4,096 characters."""
    topk: Annotated[int, Field(ge=0, le=MAX_TOPK)] | None = None
    """How many passages each query gets; with 0 or nothing, 3."""
    return_scores: bool = False
    """With it each result is `{"document", "score"}`, else the document alone."""


def retrieval_router(retriever: Retriever, max_queries: int) -> APIRouter:
    """`POST /retrieve`, with at most `max_queries` queries a request. Closing the retriever stays with the caller."""
    router = APIRouter()

    @router.post("/retrieve")
    def retrieve(question: Question) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        asked = len(question.queries)
        if asked > max_queries:
            said = (
                f"A request has at most {max_queries:,} queries here, not {asked:,}; send several or raise --max-batch."
            )
            raise HTTPException(422, said)
        try:
            found = list(_searched(retriever, question.queries, question.topk or _TOPK))
        except EnvFault as fault:
            raise HTTPException(502, str(fault)) from fault
        return {"result": [[_entry(hit, question.return_scores) for hit in hits] for hits in found]}

    return router


def _searched(retriever: Retriever, queries: list[str], k: int) -> Iterator[list[Hit]]:
    for begin in range(0, len(queries), _BATCH):
        yield from retriever.search(queries[begin : begin + _BATCH], k)


def _entry(hit: Hit, scored: bool) -> dict[str, Any]:
    document = {"id": hit.passage.id, "contents": hit.passage.contents}
    return {"document": document, "score": hit.score} if scored else document
