"""Tests of the endpoint client: retries, backoff, rate limit, errors and secrets."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any

import pytest
from agentgym_eval.policies.endpoint.client import Client, Refused, Unanswered
from agentgym_eval.util.errors import RunStopped, UsageError
from fake_endpoint import Answer, FakeEndpoint, completion_answer, error_answer, serve_endpoint


class FakeTime:
    """A fake clock that advances when it sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        if seconds:
            self.slept.append(seconds)
            self.now += seconds
        await asyncio.sleep(0)

    def clock(self) -> float:
        return self.now


def in_order(*answers: Answer | None) -> Callable[[dict[str, Any]], Answer | None]:
    remaining: Iterator[Answer | None] = iter(answers)
    return lambda request: next(remaining)


def unchanged(answer: dict[str, Any], seconds: float) -> dict[str, Any]:
    return answer


def ask(
    fake: FakeEndpoint, time: FakeTime, times: int = 1, *, known: bool = False, read: Any = unchanged, **options: Any
) -> list[dict[str, Any]]:
    async def send() -> list[dict[str, Any]]:
        client = Client(fake.base_url, "sk-secret", sleep=time.sleep, clock=time.clock, **options)
        try:
            return [await client.ask({"model": "m"}, read, known=known) for _ in range(times)]
        finally:
            await client.close()

    return asyncio.run(send())


def test_failed_requests_are_retried_with_exponential_backoff() -> None:
    answers = [
        error_answer(429),
        error_answer(503),
        None,
        Answer("<html>", 502),
        Answer("{}"),
        Answer("[" * 100_000),
        Answer({"error": {"message": "upstream", "code": 529}}),
        completion_answer("at last"),
    ]
    time = FakeTime()
    with serve_endpoint(in_order(*answers)) as fake:
        (answer,) = ask(fake, time)
    assert answer["choices"][0]["message"]["content"] == "at last"
    assert len(fake.requests) == len(answers)
    assert fake.keys == ["Bearer sk-secret"] * len(answers)
    for pause, expected in zip(time.slept, (1, 2, 4, 8, 16, 32, 60), strict=True):
        assert 0.75 * expected <= pause <= 1.25 * expected


def test_unreachable_address_is_retried_only_3_times() -> None:
    with serve_endpoint(lambda request: completion_answer("yes")) as fake:
        pass
    time = FakeTime()
    with pytest.raises(RunStopped, match="ConnectError"):
        ask(fake, time)
    assert len(time.slept) == 3


def test_endpoint_that_disappears_is_retried_longer() -> None:
    async def send(time: FakeTime) -> None:
        with serve_endpoint(
            lambda request: Answer(completion_answer("yes").body, headers={"Connection": "close"})
        ) as fake:
            client = Client(fake.base_url, "", sleep=time.sleep, clock=time.clock)
            await client.ask({}, unchanged)
        with pytest.raises(RunStopped, match="ConnectError"):
            await client.ask({}, unchanged)
        await client.close()

    time = FakeTime()
    asyncio.run(send(time))
    assert len(time.slept) == 7


def test_backoff_jitter_differs_between_clients() -> None:
    slept = set[float]()
    for seed in (0, 1):
        time = FakeTime()
        with serve_endpoint(in_order(error_answer(500), completion_answer("yes"))) as fake:
            ask(fake, time, seed=seed)
        slept.update(time.slept)
    assert len(slept) == 2


def test_retry_after_delays_all_requests_of_a_client() -> None:
    async def send(fake: FakeEndpoint, time: FakeTime) -> None:
        client = Client(fake.base_url, "", sleep=time.sleep, clock=time.clock, pauses=())
        with pytest.raises(RunStopped):
            await client.ask({}, unchanged)
        assert time.now == 0
        await client.ask({}, unchanged)
        await client.close()

    time = FakeTime()
    with serve_endpoint(in_order(error_answer(429, Retry_After="120"), completion_answer("yes"))) as fake:
        asyncio.run(send(fake, time))
    assert time.now == 120


def test_retry_after_in_the_far_future_is_not_awaited() -> None:
    time, year_2100 = FakeTime(), formatdate(4_102_444_800)
    with (
        serve_endpoint(in_order(error_answer(503, Retry_After=year_2100))) as fake,
        pytest.raises(RunStopped, match="503: no"),
    ):
        ask(fake, time)
    assert time.slept == []


def test_error_after_the_last_retry_names_the_cause() -> None:
    sentence = r"http://127.0.0.1:\d+/v1 does not respond: 500: out of memory, key \*\*\*"
    broken = error_answer(500, "out of memory, key sk-secret")
    with serve_endpoint(lambda request: broken) as fake, pytest.raises(RunStopped, match=sentence):
        ask(fake, FakeTime(), pauses=(1.0, 2.0))
    assert len(fake.requests) == 3
    with pytest.raises(RunStopped, match="ConnectError"):
        ask(fake, FakeTime(), pauses=(1.0,))


def test_retries_are_logged_immediately_and_then_rarely(caplog: pytest.LogCaptureFixture) -> None:
    busy = error_answer(429, "slow down, sk-secret")
    with serve_endpoint(lambda request: busy) as fake, pytest.raises(RunStopped):
        ask(fake, FakeTime())
    # Other tests' futures may be logged by asyncio when they are collected.
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("agentgym_eval")]
    assert re.fullmatch(
        r"http://127.0.0.1:\d+/v1 did not respond \(429: slow down, \*{3}\); retrying in 1 s \(2 of 8\)", messages[0]
    )
    assert len(messages) == 3
    assert messages[-1].endswith(" (8 of 8)")


def test_logged_pause_is_the_requested_one(caplog: pytest.LogCaptureFixture) -> None:
    with serve_endpoint(in_order(error_answer(429, Retry_After="120"), completion_answer("yes"))) as fake:
        ask(fake, FakeTime())
    assert "retrying in 120 s (2 of 8)" in caplog.text


def test_responses_without_choices_are_retried_only_twice(caplog: pytest.LogCaptureFixture) -> None:
    time = FakeTime()
    with (
        serve_endpoint(lambda request: Answer({"nope": 1})) as fake,
        pytest.raises(RunStopped, match=r"no choices: .*nope"),
    ):
        ask(fake, time)
    assert len(fake.requests) == 3
    assert len(time.slept) == 2
    assert caplog.messages[0].endswith("(2 of 3)")


def test_responses_of_another_protocol_are_retried_only_twice() -> None:
    def read(answer: dict[str, Any], seconds: float) -> str:
        return answer["choices"][0]["message"]

    with (
        serve_endpoint(lambda request: Answer({"choices": [{"text": "of another protocol"}]})) as fake,
        pytest.raises(RunStopped, match=r"not follow OpenAI's protocol \(KeyError\('message'\)\): .*another protocol"),
    ):
        ask(fake, FakeTime(), read=read)
    assert len(fake.requests) == 3


MALFORMED = [
    Answer({"nope": 1}),
    Answer("{"),
    Answer({"choices": []}),
    Answer({"error": {"message": "upstream"}}),
    Answer({"error": "no"}),
]


@pytest.mark.parametrize("malformed", MALFORMED)
def test_malformed_responses_fail_one_request_after_a_success(malformed: Answer) -> None:
    """It is retried as often as after any other error, also when a run is resumed."""
    for known, answers in ((False, (completion_answer("yes"), *[malformed] * 8)), (True, (malformed,) * 8)):
        with serve_endpoint(in_order(*answers)) as fake, pytest.raises(Unanswered, match="request in 8 attempts"):
            ask(fake, FakeTime(), 2, known=known)
        assert len(fake.requests) == len(answers)


@pytest.mark.parametrize("others_succeed", [True, False])
def test_server_error_fails_only_its_request_if_others_succeed(others_succeed: bool) -> None:
    async def send(fake: FakeEndpoint, time: FakeTime) -> None:
        client = Client(fake.base_url, "", sleep=time.sleep, clock=time.clock)

        async def sleep(seconds: float) -> None:
            await time.sleep(seconds)
            if others_succeed:
                await client.ask({"model": "fine"}, unchanged)

        await client.ask({"model": "fine"}, unchanged)
        client._sleep = sleep
        try:
            await client.ask({"model": "crash"}, unchanged)
        finally:
            await client.close()

    def answer(request: dict[str, Any]) -> Answer:
        return error_answer(500, "crashed") if request["model"] == "crash" else completion_answer("yes")

    with (
        serve_endpoint(answer) as fake,
        pytest.raises(Unanswered if others_succeed else RunStopped, match="500: crashed"),
    ):
        asyncio.run(send(fake, FakeTime()))


def test_pending_responses_are_read_after_cancellation() -> None:
    received, release = threading.Event(), threading.Event()

    def answer(request: dict[str, Any]) -> Answer:
        received.set()
        assert release.wait(60)
        return completion_answer("paid for")

    async def send(fake: FakeEndpoint) -> list[str]:
        client, contents = Client(fake.base_url, ""), list[str]()

        def keep(answer: dict[str, Any], seconds: float) -> None:
            contents.append(answer["choices"][0]["message"]["content"])

        request = asyncio.create_task(client.ask({}, keep))
        await asyncio.to_thread(received.wait, 60)
        request.cancel()
        await asyncio.wait([request])
        release.set()
        await client.close()
        return contents

    with serve_endpoint(answer) as fake:
        assert asyncio.run(send(fake)) == ["paid for"]


def test_error_after_cancellation_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    def answer(request: dict[str, Any]) -> Answer:
        assert release.wait(60)
        return error_answer(401)

    async def send(fake: FakeEndpoint) -> None:
        client = Client(fake.base_url, "")
        request = asyncio.create_task(client.ask({}, unchanged))
        while not fake.requests:
            await asyncio.sleep(0)
        request.cancel()
        await asyncio.wait([request])
        release.set()
        while client._under_way:
            await asyncio.sleep(0)
        await client.close()

    gc.collect()  # garbage of other tests in this process
    caplog.clear()
    with serve_endpoint(answer) as fake:
        asyncio.run(send(fake))
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_close_stops_waiting_for_a_missing_response() -> None:
    release = threading.Event()

    def answer(request: dict[str, Any]) -> Answer:
        assert release.wait(60)
        return completion_answer("too late")

    async def send(fake: FakeEndpoint) -> None:
        client = Client(fake.base_url, "", grace=0.01)
        request = asyncio.create_task(client.ask({}, unchanged))
        while not fake.requests:
            await asyncio.sleep(0)
        request.cancel()
        await client.close()
        release.set()

    with serve_endpoint(answer) as fake:
        asyncio.run(send(fake))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (error_answer(401, "wrong key sk-secret"), "401: wrong key ***"),
        (error_answer(429, "pay first", code="insufficient_quota"), "429 insufficient_quota: pay first"),
        (Answer({"detail": "Not Found"}, 404), "404: Not Found"),
        (
            Answer({"object": "error", "message": "too long", "type": "BadRequestError"}, 400),
            "400 BadRequestError: too long",
        ),
        (Answer({"error": {"message": "no credit", "code": 402}}), "402: no credit"),
        (Answer("moved", 301), "301: moved"),
        (
            Answer("", 307, {"Location": "https://there.example/v1/x?key=sk-secret"}),
            "307: it has moved to https://there.example/v1/x?key=***; give --base-url up to /v1 there",
        ),
        (error_answer(400, "no", code="sk-secret"), "400 ***: no"),
    ],
)
def test_refused_requests_are_not_retried(answer: Answer, expected: str) -> None:
    with serve_endpoint(in_order(answer)) as fake, pytest.raises(Refused) as refused:
        ask(fake, FakeTime())
    assert str(refused.value) == expected


def test_requests_respect_the_rate_limit() -> None:
    time = FakeTime()
    sent_at: list[float] = []

    def answer(request: dict[str, Any]) -> Answer:
        sent_at.append(time.now)
        return completion_answer("yes")

    async def send(fake: FakeEndpoint) -> None:
        client = Client(fake.base_url, "", rate=30, sleep=time.sleep, clock=time.clock)
        for _ in range(5):
            await client.ask({}, unchanged)
        await client.close()

    with serve_endpoint(answer) as fake:
        asyncio.run(send(fake))
    assert sent_at == [0, 2, 4, 6, 8]
    assert fake.keys == [None] * 5


@pytest.mark.parametrize("address", ["", "127.0.0.1:8000", "ftp://host", "http://", "http://host:port"])
def test_invalid_addresses_are_rejected(address: str) -> None:
    with pytest.raises(UsageError, match="address"):
        Client(address, "")


def test_invalid_key_is_rejected_without_being_shown() -> None:
    with pytest.raises(UsageError, match="OPENAI_API_KEY") as refused:
        Client("http://host.example", "sk-one\nsk-two")
    assert "sk-" not in str(refused.value)


@pytest.mark.parametrize("length", range(285, 305))
def test_truncated_errors_show_no_part_of_the_key(length: int) -> None:
    with (
        serve_endpoint(in_order(error_answer(400, "x" * length + "sk-secret"))) as fake,
        pytest.raises(Refused) as refused,
    ):
        ask(fake, FakeTime())
    assert "s" not in str(refused.value)


def test_secrets_in_the_address_are_not_shown() -> None:
    client = Client("http://me:hidden@host.example/v1/?key=hidden", "")
    assert client.shown == "http://host.example/v1"
    asyncio.run(client.close())


def test_query_of_the_address_is_sent_with_each_request() -> None:
    with serve_endpoint(lambda request: completion_answer("yes")) as fake:
        fake.base_url += "/?api-version=1"
        ask(fake, FakeTime())
    assert fake.paths == ["/v1/chat/completions?api-version=1"]
