"""Searches on another machine: the client of any server that speaks Search-R1's `POST /retrieve`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

import httpx

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.retrieval.corpus import passage_of
from agentgym_envs.retrieval.passages import MAX_TOPK, Hit, sendable

_BATCH = 256
"""How many queries one request carries, which is also what our own server takes."""
_PATIENCE = httpx.Timeout(60.0, connect=5.0)  # seconds; a dense index on a CPU takes tens for a batch
_PAUSES = (0.1, 0.4, 1.6)  # seconds before each new attempt


class HttpRetriever:
    """Asks the server at `url` (`http://HOST:PORT`, with or without `/retrieve`). Connections are kept and shared.

    Proxy settings of the environment aren't followed.
    """

    def __init__(self, url: str, *, timeout: httpx.Timeout = _PATIENCE, pauses: Sequence[float] = _PAUSES) -> None:
        """`pauses`: the seconds before each new attempt after no connection, no answer, or a status of 429 or 5xx."""
        self.url = f"{url.rstrip('/').removesuffix('/retrieve')}/retrieve"
        self._pauses = tuple(pauses)
        self._timeout = timeout
        self._client, self._owner = self._connect(), os.getpid()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `Retriever.search`.

        Raises:
            EnvFault: when the server can't be reached, fails, or answers something that isn't the protocol.
        """
        if k < 1:
            return [[] for _ in queries]
        asked, k = [sendable(query) for query in queries], min(k, MAX_TOPK)
        return [hits for begin in range(0, len(asked), _BATCH) for hits in self._ask(asked[begin : begin + _BATCH], k)]

    def close(self) -> None:
        """Close the connections. A search after that would open others."""
        self._client.close()

    def _ask(self, queries: list[str], k: int) -> Iterator[list[Hit]]:
        answer = self._post({"queries": queries, "topk": k, "return_scores": True})
        try:
            rows = answer.json()["result"]
            found = [[_hit(entry) for entry in row][:k] for row in rows]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise EnvFault(f"{self.url} doesn't answer as Search-R1's /retrieve does: {error!r}.") from error
        if len(found) != len(queries):
            raise EnvFault(f"{self.url} answered {len(queries)} queries with {len(found)} results.")
        return iter(found)

    def _post(self, question: dict[str, Any]) -> httpx.Response:
        trouble: object = None
        for pause in (0.0, *self._pauses):
            time.sleep(pause)
            try:
                answer = self._connected().post(self.url, json=question)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                trouble = repr(error)
                continue
            if answer.status_code == 200:
                return answer
            trouble = f"status {answer.status_code}: {answer.text[:200]}"
            if answer.status_code < 500 and answer.status_code != 429:
                break
        raise EnvFault(f"{self.url} can't be searched: {trouble}. Is a retrieval server running there?")

    def _connected(self) -> httpx.Client:
        """The client of this process: a fork must not write into its parent's connections."""
        if self._owner != os.getpid() or self._client.is_closed:
            self._client, self._owner = self._connect(), os.getpid()
        return self._client

    def _connect(self) -> httpx.Client:
        # a cluster's proxy is for the internet and doesn't know the cluster's own addresses
        return httpx.Client(timeout=self._timeout, trust_env=False)


def _hit(entry: Any) -> Hit:
    """One entry of a result: `{"document": {...}, "score": ...}`."""
    document = cast("dict[str, Any]", entry["document"])
    return Hit(passage_of(document), float(entry["score"]))
