"""Searching over HTTP: our server and our client, each against the protocol of Search-R1."""

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

Serving = Callable[[Retriever], AbstractContextManager[str]]


class Echo:
    """Finds for each query passages that repeat it."""

    broken = False
    largest = 0

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.largest = max(self.largest, len(queries))
        if self.broken:
            raise EnvFault("the index burnt")
        return [
            [Hit(Passage(str(at), query, f"text {at}"), 1 / (at + 1)) for at in range(min(k, 5))] for query in queries
        ]

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def echo() -> Echo:
    return Echo()


@pytest.fixture
def url(serving: Serving, echo: Echo) -> Iterator[str]:
    echo.broken = False
    with serving(echo) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[HttpRetriever]:
    client = HttpRetriever(url, pauses=(0.0, 0.0))
    yield client
    client.close()


def test_the_protocol_is_search_r1s(url: str) -> None:
    document = {"id": "0", "contents": '"heron"\ntext 0'}
    scored = retrieve(url, queries=["heron"], topk=1, return_scores=True)
    assert scored.json() == {"result": [[{"document": document, "score": 1.0}]]}
    assert retrieve(url, queries=["heron"], topk=1).json() == {"result": [[document]]}
    assert [len(row) for row in retrieve(url, queries=["a", "b"], topk=None).json()["result"]] == [3, 3]


def turn_of_search_r1(url: str, queries: list[str], topk: int) -> list[str]:
    """What Search-R1 does with the queries of all its rollouts: one request, and a text for each answer."""
    answer = httpx.post(f"{url}/retrieve", json={"queries": queries, "topk": topk, "return_scores": True}, timeout=120)
    texts: list[str] = []
    for entries in answer.json()["result"]:
        documents = [entry["document"]["contents"].split("\n", 1) for entry in entries]
        texts.append("".join(f"Doc {at}(Title: {title}) {text}\n" for at, (title, text) in enumerate(documents, 1)))
    return texts


def test_a_turn_of_search_r1_is_one_request(url: str, echo: Echo) -> None:
    echo.largest = 0
    # train_grpo.sh: 512 prompts with 5 episodes each; some say more than is searched for
    queries = [f"query {number}" if number % 40 else f"{number} {'word ' * 1_000}" for number in range(2_560)]
    texts = turn_of_search_r1(url, queries, 0)
    assert len(texts) == 2_560
    for query, text in zip(queries, texts, strict=True):
        heard = query[:MAX_QUERY_CHARS]
        assert text == "".join(f'Doc {at + 1}(Title: "{heard}") text {at}\n' for at in range(3))
    assert echo.largest == 256, "other callers are answered in between"


def test_a_lone_surrogate_costs_nobody_an_answer(url: str) -> None:
    asked = b'{"queries": ["a \\ud800 b", "c"], "topk": 1}'
    answer = httpx.post(f"{url}/retrieve", content=asked, headers={"Content-Type": "application/json"})
    assert [row[0]["contents"] for row in answer.json()["result"]] == ['"a ? b"\ntext 0', '"c"\ntext 0']


def test_too_many_queries_are_told_how_many_there_may_be(url: str) -> None:
    answer = retrieve(url, queries=["a"] * 4_097)
    assert answer.json()["detail"] == (
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
def test_a_bad_question_is_the_askers_fault(url: str, body: dict[str, object]) -> None:
    assert retrieve(url, **body).status_code == 422


def test_a_broken_index_is_not(url: str, echo: Echo, client: HttpRetriever) -> None:
    echo.broken = True
    answer = retrieve(url, queries=["a"])
    assert (answer.status_code, answer.json()) == (502, {"detail": "the index burnt"})
    with pytest.raises(EnvFault, match=r"/retrieve can't be searched: status 502: .*the index burnt"):
        client.search(["a"], 1)
    echo.broken = False
    assert len(client.search(["a"], 1)) == 1


def test_the_client_finds_what_the_server_finds(client: HttpRetriever, echo: Echo) -> None:
    asked = [f"query {number}" for number in range(600)]
    assert client.search(asked, 2) == echo.search(asked, 2)
    assert client.search([], 2) == []
    assert client.search(["a"], 0) == [[]]
    assert [len(hits) for hits in client.search(["lone \ud800 surrogate", "\x00", "x" * 4_096], 2)] == [2, 2, 2]


def test_no_text_and_no_number_is_too_much(client: HttpRetriever) -> None:
    (hits,) = client.search(["x" * 10_000], 10**10)
    assert hits[0].passage.title == "x" * MAX_QUERY_CHARS


def test_a_closed_client_connects_anew(client: HttpRetriever) -> None:
    client.close()
    assert len(client.search(["a"], 1)) == 1


def test_a_proxy_of_the_environment_is_not_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    client = HttpRetriever(url, pauses=())
    assert len(client.search(["a"], 1)) == 1
    client.close()


@pytest.mark.parametrize("url", ["http://a b:80", "ftp://h"])
def test_what_httpx_itself_refuses_is_a_fault(url: str) -> None:
    client = HttpRetriever(url, pauses=())
    with pytest.raises(EnvFault, match="can't be searched: "):
        client.search(["a"], 1)
    client.close()


def test_many_callers(client: HttpRetriever, echo: Echo) -> None:
    asked = [[f"query {number}"] for number in range(200)]
    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(lambda one: client.search(one, 3), asked)) == [echo.search(one, 3) for one in asked]


def _search_in_child(client: HttpRetriever, found: multiprocessing.SimpleQueue[object]) -> None:
    found.put(ids(client.search(["a"], 2)))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of Python 3.12, at a fork
def test_a_fork_has_connections_of_its_own(client: HttpRetriever) -> None:
    before = client.search(["a"], 2)
    kept = client._client
    context = multiprocessing.get_context("fork")
    found = context.SimpleQueue()
    children = [context.Process(target=_search_in_child, args=(client, found)) for _ in range(4)]
    for child in children:
        child.start()
    assert [found.get() for _ in children] == [ids(before)] * 4
    for child in children:
        child.join()
    assert client._connected() is kept
    assert client.search(["a"], 2) == before


@pytest.mark.parametrize("written", ["http://h:1", "http://h:1/", "http://h:1/retrieve"])
def test_the_address_may_name_the_path(written: str) -> None:
    client = HttpRetriever(written)
    assert client.url == "http://h:1/retrieve"
    client.close()


# A server that does as it is told.

Answers = list[tuple[int, bytes]]


@pytest.fixture
def told() -> Iterator[tuple[str, Answers, list[bytes]]]:
    answers: Answers = []
    heard: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(self.rfile.read(int(self.headers["Content-Length"])))
            status, body = answers.pop(0)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", answers, heard
        server.shutdown()
        thread.join()


GOOD = json.dumps({"result": [[{"document": {"id": 7, "contents": '"T"\nx'}, "score": 2}]]}).encode()


@pytest.mark.parametrize("first", [(500, b"oh"), (503, b"busy"), (429, b"slowly")])
def test_a_server_in_trouble_is_asked_again(told: tuple[str, Answers, list[bytes]], first: tuple[int, bytes]) -> None:
    url, answers, heard = told
    answers += [first, first, (200, GOOD)]
    client = HttpRetriever(url, pauses=(0.0, 0.0))
    assert client.search(["q"], 1) == [[Hit(Passage("7", "T", "x"), 2.0)]]
    assert [json.loads(body) for body in heard] == [{"queries": ["q"], "topk": 1, "return_scores": True}] * 3
    client.close()


def test_a_refusal_is_not_asked_again(told: tuple[str, Answers, list[bytes]]) -> None:
    url, answers, heard = told
    answers += [(404, b"no such page"), (200, GOOD)]
    client = HttpRetriever(url, pauses=(0.0, 0.0))
    with pytest.raises(EnvFault, match="status 404: no such page"):
        client.search(["q"], 1)
    assert len(heard) == 1
    client.close()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"<html>", "doesn't answer as Search-R1's /retrieve does"),
        (b"[]", "doesn't answer as"),
        (b'{"result": 1}', "doesn't answer as"),
        (b'{"result": [[{"document": {"id": "1"}, "score": 1}]]}', "neither text nor contents"),
        (b'{"result": [[{"id": "1", "contents": "a"}]]}', "doesn't answer as"),
        (b'{"result": []}', "answered 1 queries with 0 results"),
    ],
)
def test_an_answer_of_another_form_is_a_fault(told: tuple[str, Answers, list[bytes]], body: bytes, says: str) -> None:
    url, answers, _ = told
    answers.append((200, body))
    client = HttpRetriever(url, pauses=())
    with pytest.raises(EnvFault, match=rf"{url}/retrieve .*{says}"):
        client.search(["q"], 1)
    client.close()


def test_nobody_there_is_a_fault_that_names_the_address(told: tuple[str, Answers, list[bytes]]) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        url = f"http://127.0.0.1:{server.server_port}"
    client = HttpRetriever(url, pauses=(0.0,))
    with pytest.raises(
        EnvFault, match=rf"{url}/retrieve can't be searched: ConnectError.* Is a retrieval server running"
    ):
        client.search(["q"], 1)
    client.close()
