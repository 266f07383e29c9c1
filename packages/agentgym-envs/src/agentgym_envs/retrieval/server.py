"""Serves a retriever over HTTP with Search-R1's `POST /retrieve`, so that many processes share one index.

Does not depend on environments or on the server that mounts the router. Each request runs in a thread of its own, since
retrievers are thread-safe; Lucene's worker batches concurrent requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, BeforeValidator, FailFast, Field

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.retrieval.passages import MAX_TOPK, Hit, Retriever, sendable

_TOPK = 3
_MAX_QUERIES = 65_536
"""Queries that are read of a request. All of a large body would keep the server busy before it can refuse them."""
_BATCH = 256
"""Queries per call of the retriever, so that a large request doesn't delay the others."""


def _sendable(query: object) -> object:
    return sendable(query) if isinstance(query, str) else query


class Question(BaseModel):
    """The body of `/retrieve`."""

    queries: Annotated[list[Annotated[str, BeforeValidator(_sendable)]], FailFast(), Field(max_length=_MAX_QUERIES)]
    """Search queries; each is truncated to 4,096 characters."""
    topk: Annotated[int, Field(ge=0, le=MAX_TOPK)] | None = None
    """Passages per query; 0 or null means 3."""
    return_scores: bool = False
    """Return each result as `{"document", "score"}` rather than as the document alone."""


def retrieval_router(retriever: Retriever, max_queries: int) -> APIRouter:
    """Return a router for `POST /retrieve` with at most `max_queries` queries per request, or 65,536.

    The caller closes the retriever.
    """
    router = APIRouter()

    @router.post("/retrieve")
    def retrieve(question: Question) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        number = len(question.queries)
        if number > max_queries:
            raise HTTPException(
                422,
                f"The request has {number:,} queries; the server accepts {max_queries:,}. "
                "Send several requests or raise --max-batch.",
            )
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
