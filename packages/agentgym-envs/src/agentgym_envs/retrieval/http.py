"""A client for retrieval servers with Search-R1's `POST /retrieve`."""

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
"""Queries per request; our own server accepts as many."""
_TIMEOUT = httpx.Timeout(60.0, connect=5.0)  # seconds; a dense index on a CPU takes tens of seconds per batch
_PAUSES = (0.1, 0.4, 1.6)  # seconds before each retry


class HttpRetriever:
    """A retriever that queries the server at `url` (`http://HOST:PORT`, with or without `/retrieve`).

    Connections are kept alive and shared by threads. Proxy environment variables are ignored.
    """

    def __init__(self, url: str, *, timeout: httpx.Timeout = _TIMEOUT, pauses: Sequence[float] = _PAUSES) -> None:
        """Create the client.

        Args:
            url: Address of the server.
            timeout: Timeout of each attempt.
            pauses: Seconds before each retry after a connection error, a timeout, or status 429 or 5xx.
        """
        self.url = f"{url.rstrip('/').removesuffix('/retrieve')}/retrieve"
        self._pauses = tuple(pauses)
        self._timeout = timeout
        self._client, self._owner = self._connect(), os.getpid()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `Retriever.search`.

        Raises:
            EnvFault: if the server can't be reached, fails, or its response doesn't follow the protocol.
        """
        if k < 1:
            return [[] for _ in queries]
        texts, k = [sendable(query) for query in queries], min(k, MAX_TOPK)
        return [hits for begin in range(0, len(texts), _BATCH) for hits in self._ask(texts[begin : begin + _BATCH], k)]

    def close(self) -> None:
        """Close the connections. A later search opens new ones."""
        self._client.close()

    def _ask(self, queries: list[str], k: int) -> Iterator[list[Hit]]:
        response = self._post({"queries": queries, "topk": k, "return_scores": True})
        try:
            rows = response.json()["result"]
            found = [[_hit(entry) for entry in row][:k] for row in rows]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise EnvFault(f"{self.url} doesn't answer as Search-R1's /retrieve does: {error!r}.") from error
        if len(found) != len(queries):
            raise EnvFault(f"{self.url} answered {len(queries)} queries with {len(found)} results.")
        return iter(found)

    def _post(self, body: dict[str, Any]) -> httpx.Response:
        problem: object = None
        for pause in (0.0, *self._pauses):
            time.sleep(pause)
            try:
                response = self._connected().post(self.url, json=body)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                problem = repr(error)
                continue
            if response.status_code == 200:
                return response
            problem = f"status {response.status_code}: {response.text[:200]}"
            if response.status_code < 500 and response.status_code != 429:
                break
        raise EnvFault(f"{self.url} can't be searched: {problem}. Is a retrieval server running there?")

    def _connected(self) -> httpx.Client:
        """Return this process's client: a forked child must not write to its parent's connections."""
        if self._owner != os.getpid() or self._client.is_closed:
            self._client, self._owner = self._connect(), os.getpid()
        return self._client

    def _connect(self) -> httpx.Client:
        # A cluster's proxy is for the internet and can't resolve the cluster's own addresses.
        return httpx.Client(timeout=self._timeout, trust_env=False)


def _hit(entry: Any) -> Hit:
    """Convert one entry of a result: `{"document": {...}, "score": ...}`."""
    document = cast("dict[str, Any]", entry["document"])
    return Hit(passage_of(document), float(entry["score"]))
