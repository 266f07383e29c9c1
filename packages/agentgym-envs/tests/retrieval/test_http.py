"""Tests of searching over HTTP: the server and the client, each against Search-R1's protocol."""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.retrieval import Hit, Passage, Retriever
from agentgym_envs.retrieval.http import HttpRetriever
from agentgym_envs.retrieval.passages import MAX_QUERY_CHARS
from small_corpus import ids, retrieve

ServeRetriever = Callable[[Retriever], AbstractContextManager[str]]


class Echo:
    """A retriever whose passages repeat the query."""

    broken = False
    largest_batch = 0

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.largest_batch = max(self.largest_batch, len(queries))
        if self.broken:
            raise EnvFault("the index burnt")
        return [
            [Hit(Passage(str(rank), query, f"text {rank}"), 1 / (rank + 1)) for rank in range(min(k, 5))]
            for query in queries
        ]

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def echo() -> Echo:
    return Echo()


@pytest.fixture
def url(serve_retriever: ServeRetriever, echo: Echo) -> Iterator[str]:
    echo.broken = False
    with serve_retriever(echo) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[HttpRetriever]:
    client = HttpRetriever(url, pauses=(0.0, 0.0))
    yield client
    client.close()


def test_server_follows_search_r1s_protocol(url: str) -> None:
    document = {"id": "0", "contents": '"heron"\ntext 0'}
    scored = retrieve(url, queries=["heron"], topk=1, return_scores=True)
    assert scored.json() == {"result": [[{"document": document, "score": 1.0}]]}
    assert retrieve(url, queries=["heron"], topk=1).json() == {"result": [[document]]}
    assert [len(row) for row in retrieve(url, queries=["a", "b"], topk=None).json()["result"]] == [3, 3]


def search_as_search_r1(url: str, queries: list[str], topk: int) -> list[str]:
    """Send the queries of all rollouts in one request and return a text for each, as Search-R1 does."""
    response = httpx.post(
        f"{url}/retrieve", json={"queries": queries, "topk": topk, "return_scores": True}, timeout=120
    )
    texts: list[str] = []
    for entries in response.json()["result"]:
        documents = [entry["document"]["contents"].split("\n", 1) for entry in entries]
        texts.append("".join(f"Doc {at}(Title: {title}) {text}\n" for at, (title, text) in enumerate(documents, 1)))
    return texts


def test_one_request_holds_the_queries_of_a_search_r1_step(url: str, echo: Echo) -> None:
    echo.largest_batch = 0
    # train_grpo.sh: 512 prompts with 5 episodes each; some queries exceed the maximum length
    queries = [f"query {number}" if number % 40 else f"{number} {'word ' * 1_000}" for number in range(2_560)]
    texts = search_as_search_r1(url, queries, 0)
    assert len(texts) == 2_560
    for query, text in zip(queries, texts, strict=True):
        title = query[:MAX_QUERY_CHARS]
        assert text == "".join(f'Doc {at + 1}(Title: "{title}") text {at}\n' for at in range(3))
    assert echo.largest_batch == 256, "other callers must be served in between"


def test_lone_surrogate_is_replaced_in_its_query_only(url: str) -> None:
    body = b'{"queries": ["a \\ud800 b", "c"], "topk": 1}'
    response = httpx.post(f"{url}/retrieve", content=body, headers={"Content-Type": "application/json"})
    assert [row[0]["contents"] for row in response.json()["result"]] == ['"a ? b"\ntext 0', '"c"\ntext 0']


@pytest.mark.parametrize("queries", [b"1," * 1_000_000 + b"1", b'"",' * 1_000_000 + b'""'], ids=["numbers", "empty"])
def test_only_the_first_invalid_queries_are_read(url: str, queries: bytes) -> None:
    """Listing the errors of a whole body took the server minutes."""
    body = b'{"queries": [' + queries + b"]}"
    response = httpx.post(f"{url}/retrieve", content=body, headers={"Content-Type": "application/json"}, timeout=60)
    assert (response.status_code, len(response.json()["detail"])) == (422, 1)


def test_too_many_queries_are_refused_with_the_maximum(url: str) -> None:
    response = retrieve(url, queries=["a"] * 4_097)
    assert response.json()["detail"] == (
        "The request has 4,097 queries; the server accepts 4,096. Send several requests or raise --max-batch."
    )


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"queries": "heron"},
        {"queries": [1]},
        {"queries": ["a"] * 4_097},
        {"queries": ["a"], "topk": -1},
        {"queries": ["a"], "topk": 1_001},
    ],
    ids=lambda body: str(body)[:30],
)
def test_invalid_request_has_status_422(url: str, body: dict[str, object]) -> None:
    assert retrieve(url, **body).status_code == 422


def test_broken_index_has_status_502(url: str, echo: Echo, client: HttpRetriever) -> None:
    echo.broken = True
    response = retrieve(url, queries=["a"])
    assert (response.status_code, response.json()) == (502, {"detail": "the index burnt"})
    with pytest.raises(EnvFault, match=r"/retrieve can't be searched: status 502: .*the index burnt"):
        client.search(["a"], 1)
    echo.broken = False
    assert len(client.search(["a"], 1)) == 1


def test_client_returns_the_hits_of_the_server(client: HttpRetriever, echo: Echo) -> None:
    queries = [f"query {number}" for number in range(600)]
    assert client.search(queries, 2) == echo.search(queries, 2)
    assert client.search([], 2) == []
    assert client.search(["a"], 0) == [[]]
    assert [len(hits) for hits in client.search(["lone \ud800 surrogate", "\x00", "x" * 4_096], 2)] == [2, 2, 2]


def test_long_query_and_large_k_are_cut_to_the_limits(client: HttpRetriever) -> None:
    (hits,) = client.search(["x" * 10_000], 10**10)
    assert hits[0].passage.title == "x" * MAX_QUERY_CHARS


def test_closed_client_reconnects(client: HttpRetriever) -> None:
    client.close()
    assert len(client.search(["a"], 1)) == 1


def test_proxy_environment_variable_is_ignored(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    client = HttpRetriever(url, pauses=())
    assert len(client.search(["a"], 1)) == 1
    client.close()


@pytest.mark.parametrize("url", ["http://a b:80", "ftp://h"])
def test_url_that_httpx_refuses_is_a_fault(url: str) -> None:
    client = HttpRetriever(url, pauses=())
    with pytest.raises(EnvFault, match="can't be searched: "):
        client.search(["a"], 1)
    client.close()


def test_concurrent_callers_get_their_own_hits(client: HttpRetriever, echo: Echo) -> None:
    batches = [[f"query {number}"] for number in range(200)]
    with ThreadPoolExecutor(16) as threads:
        results = list(threads.map(lambda batch: client.search(batch, 3), batches))
    assert results == [echo.search(batch, 3) for batch in batches]


def _search_in_child(client: HttpRetriever, results: multiprocessing.SimpleQueue[object]) -> None:
    results.put(ids(client.search(["a"], 2)))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of Python 3.12, at a fork
def test_forked_processes_have_their_own_connections(client: HttpRetriever) -> None:
    before = client.search(["a"], 2)
    connections = client._client
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    children = [context.Process(target=_search_in_child, args=(client, results)) for _ in range(4)]
    for child in children:
        child.start()
    assert [results.get() for _ in children] == [ids(before)] * 4
    for child in children:
        child.join()
    assert client._connected() is connections
    assert client.search(["a"], 2) == before


@pytest.mark.parametrize("address", ["http://h:1", "http://h:1/", "http://h:1/retrieve"])
def test_address_may_include_the_path(address: str) -> None:
    client = HttpRetriever(address)
    assert client.url == "http://h:1/retrieve"
    client.close()


# A server with scripted responses.

ScriptedServer = tuple[str, list[tuple[int, bytes]], list[bytes]]
"""The URL, the status and body of each response to come, and the bodies of the received requests."""


@pytest.fixture
def scripted_server() -> Iterator[ScriptedServer]:
    responses: list[tuple[int, bytes]] = []
    requests: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(self.rfile.read(int(self.headers["Content-Length"])))
            status, body = responses.pop(0)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", responses, requests
        server.shutdown()
        thread.join()


GOOD = json.dumps({"result": [[{"document": {"id": 7, "contents": '"T"\nx'}, "score": 2}]]}).encode()


@pytest.mark.parametrize("error", [(500, b"oh"), (503, b"busy"), (429, b"slowly")])
def test_transient_errors_are_retried(scripted_server: ScriptedServer, error: tuple[int, bytes]) -> None:
    url, responses, requests = scripted_server
    responses += [error, error, (200, GOOD)]
    client = HttpRetriever(url, pauses=(0.0, 0.0))
    assert client.search(["q"], 1) == [[Hit(Passage("7", "T", "x"), 2.0)]]
    assert [json.loads(body) for body in requests] == [{"queries": ["q"], "topk": 1, "return_scores": True}] * 3
    client.close()


def test_refused_request_is_not_retried(scripted_server: ScriptedServer) -> None:
    url, responses, requests = scripted_server
    responses += [(404, b"no such page"), (200, GOOD)]
    client = HttpRetriever(url, pauses=(0.0, 0.0))
    with pytest.raises(EnvFault, match="status 404: no such page"):
        client.search(["q"], 1)
    assert len(requests) == 1
    client.close()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>", "doesn't answer as Search-R1's /retrieve does"),
        (b"[]", "doesn't answer as"),
        (b'{"result": 1}', "doesn't answer as"),
        (b'{"result": [[{"document": {"id": "1"}, "score": 1}]]}', "neither text nor contents"),
        (b'{"result": [[{"id": "1", "contents": "a"}]]}', "doesn't answer as"),
        (b'{"result": []}', "answered 1 queries with 0 results"),
    ],
)
def test_malformed_response_is_a_fault(scripted_server: ScriptedServer, body: bytes, message: str) -> None:
    url, responses, _ = scripted_server
    responses.append((200, body))
    client = HttpRetriever(url, pauses=())
    with pytest.raises(EnvFault, match=rf"{url}/retrieve .*{message}"):
        client.search(["q"], 1)
    client.close()


def test_unreachable_server_is_a_fault_with_its_address(scripted_server: ScriptedServer) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        url = f"http://127.0.0.1:{server.server_port}"
    client = HttpRetriever(url, pauses=(0.0,))
    with pytest.raises(
        EnvFault, match=rf"{url}/retrieve can't be searched: ConnectError.* Is a retrieval server running"
    ):
        client.search(["q"], 1)
    client.close()
