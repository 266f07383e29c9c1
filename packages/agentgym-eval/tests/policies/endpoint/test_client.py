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
from fake_endpoint import Answer, FakeEndpoint, said, serving, trouble


class Time:
    """Passes when somebody sleeps."""

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


def in_turn(*answers: Answer | None) -> Callable[[dict[str, Any]], Answer | None]:
    waiting: Iterator[Answer | None] = iter(answers)
    return lambda request: next(waiting)


def as_it_is(answer: dict[str, Any], seconds: float) -> dict[str, Any]:
    return answer


def ask(
    fake: FakeEndpoint, time: Time, times: int = 1, *, known: bool = False, read: Any = as_it_is, **options: Any
) -> list[dict[str, Any]]:
    async def asking() -> list[dict[str, Any]]:
        client = Client(fake.base_url, "sk-secret", sleep=time.sleep, clock=time.clock, **options)
        try:
            return [await client.ask({"model": "m"}, read, known=known) for _ in range(times)]
        finally:
            await client.close()

    return asyncio.run(asking())


def test_an_endpoint_that_is_busy_broken_or_gone_is_asked_again_after_growing_pauses() -> None:
    answers = [
        trouble(429),
        trouble(503),
        None,
        Answer("<html>", 502),
        Answer("{}"),
        Answer("[" * 100_000),
        Answer({"error": {"message": "upstream", "code": 529}}),
        said("at last"),
    ]
    time = Time()
    with serving(in_turn(*answers)) as fake:
        (answer,) = ask(fake, time)
    assert answer["choices"][0]["message"]["content"] == "at last"
    assert len(fake.asked) == len(answers)
    assert fake.keys == ["Bearer sk-secret"] * len(answers)
    for pause, meant in zip(time.slept, (1, 2, 4, 8, 16, 32, 60), strict=True):
        assert 0.75 * meant <= pause <= 1.25 * meant


def test_an_address_at_which_nobody_ever_was_is_given_up_soon() -> None:
    with serving(lambda request: said("yes")) as fake:
        pass
    time = Time()
    with pytest.raises(RunStopped, match="ConnectError"):
        ask(fake, time)
    assert len(time.slept) == 3


def test_an_endpoint_that_was_met_is_waited_for_when_it_goes_away() -> None:
    async def asking(time: Time) -> None:
        with serving(lambda request: Answer(said("yes").body, headers={"Connection": "close"})) as fake:
            client = Client(fake.base_url, "", sleep=time.sleep, clock=time.clock)
            await client.ask({}, as_it_is)
        with pytest.raises(RunStopped, match="ConnectError"):
            await client.ask({}, as_it_is)
        await client.close()

    time = Time()
    asyncio.run(asking(time))
    assert len(time.slept) == 7


def test_pauses_differ_between_clients_so_that_they_do_not_come_back_together() -> None:
    slept = set[float]()
    for seed in (0, 1):
        time = Time()
        with serving(in_turn(trouble(500), said("yes"))) as fake:
            ask(fake, time, seed=seed)
        slept.update(time.slept)
    assert len(slept) == 2


def test_the_pause_that_an_endpoint_asks_for_is_kept_by_all() -> None:
    async def asking(fake: FakeEndpoint, time: Time) -> None:
        client = Client(fake.base_url, "", sleep=time.sleep, clock=time.clock, pauses=())
        with pytest.raises(RunStopped):
            await client.ask({}, as_it_is)
        assert time.now == 0
        await client.ask({}, as_it_is)
        await client.close()

    time = Time()
    with serving(in_turn(trouble(429, Retry_After="120"), said("yes"))) as fake:
        asyncio.run(asking(fake, time))
    assert time.now == 120


def test_a_pause_that_is_a_date_far_away_is_not_waited_for() -> None:
    time, year_2100 = Time(), formatdate(4_102_444_800)
    with serving(in_turn(trouble(503, Retry_After=year_2100))) as fake, pytest.raises(RunStopped, match="503: no"):
        ask(fake, time)
    assert time.slept == []


def test_patience_ends_and_the_sentence_says_what_was_wrong() -> None:
    sentence = r"http://127.0.0.1:\d+/v1 does not respond: 500: out of memory, key \*\*\*"
    broken = trouble(500, "out of memory, key sk-secret")
    with serving(lambda request: broken) as fake, pytest.raises(RunStopped, match=sentence):
        ask(fake, Time(), pauses=(1.0, 2.0))
    assert len(fake.asked) == 3
    with pytest.raises(RunStopped, match="ConnectError"):
        ask(fake, Time(), pauses=(1.0,))


def test_who_waits_is_told_why_at_once_and_then_seldom(caplog: pytest.LogCaptureFixture) -> None:
    busy = trouble(429, "slow down, sk-secret")
    with serving(lambda request: busy) as fake, pytest.raises(RunStopped):
        ask(fake, Time())
    told = caplog.messages
    assert re.fullmatch(
        r"http://127.0.0.1:\d+/v1 did not respond \(429: slow down, \*{3}\); retrying in 1 s \(2 of 8\)", told[0]
    )
    assert len(told) == 3
    assert told[-1].endswith(" (8 of 8)")


def test_the_pause_that_is_told_is_the_one_that_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with serving(in_turn(trouble(429, Retry_After="120"), said("yes"))) as fake:
        ask(fake, Time())
    assert "retrying in 120 s (2 of 8)" in caplog.text


def test_answers_that_never_have_choices_are_given_up_soon(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    with serving(lambda request: Answer({"nope": 1})) as fake, pytest.raises(RunStopped, match=r"no choices: .*nope"):
        ask(fake, time)
    assert len(fake.asked) == 3
    assert len(time.slept) == 2
    assert caplog.messages[0].endswith("(2 of 3)")


def test_an_endpoint_of_another_protocol_is_given_up_soon() -> None:
    def read(answer: dict[str, Any], seconds: float) -> str:
        return answer["choices"][0]["message"]

    with (
        serving(lambda request: Answer({"choices": [{"text": "of another protocol"}]})) as fake,
        pytest.raises(RunStopped, match=r"not follow OpenAI's protocol \(KeyError\('message'\)\): .*another protocol"),
    ):
        ask(fake, Time(), read=read)
    assert len(fake.asked) == 3


BAD = [
    Answer({"nope": 1}),
    Answer("{"),
    Answer({"choices": []}),
    Answer({"error": {"message": "upstream"}}),
    Answer({"error": "no"}),
]


@pytest.mark.parametrize("bad", BAD)
def test_one_bad_answer_fails_one_request_once_others_were_answered(bad: Answer) -> None:
    """With the patience of any other trouble, and in a later sitting as well."""
    for known, answers in ((False, (said("yes"), *[bad] * 8)), (True, (bad,) * 8)):
        with serving(in_turn(*answers)) as fake, pytest.raises(Unanswered, match="request in 8 attempts"):
            ask(fake, Time(), 2, known=known)
        assert len(fake.asked) == len(answers)


@pytest.mark.parametrize("others", [True, False])
def test_a_server_that_breaks_at_one_request_alone_fails_that_one(others: bool) -> None:
    async def asking(fake: FakeEndpoint, time: Time) -> None:
        client = Client(fake.base_url, "", sleep=time.sleep, clock=time.clock)

        async def meanwhile(seconds: float) -> None:
            await time.sleep(seconds)
            if others:
                await client.ask({"model": "fine"}, as_it_is)

        await client.ask({"model": "fine"}, as_it_is)
        client._sleep = meanwhile
        try:
            await client.ask({"model": "crash"}, as_it_is)
        finally:
            await client.close()

    def answer(request: dict[str, Any]) -> Answer:
        return trouble(500, "crashed") if request["model"] == "crash" else said("yes")

    with serving(answer) as fake, pytest.raises(Unanswered if others else RunStopped, match="500: crashed"):
        asyncio.run(asking(fake, Time()))


def test_answers_under_way_are_read_although_nobody_waits_for_them_any_more() -> None:
    came, go_on = threading.Event(), threading.Event()

    def answer(request: dict[str, Any]) -> Answer:
        came.set()
        assert go_on.wait(60)
        return said("paid for")

    async def asking(fake: FakeEndpoint) -> list[str]:
        client, read = Client(fake.base_url, ""), list[str]()

        def keep(answer: dict[str, Any], seconds: float) -> None:
            read.append(answer["choices"][0]["message"]["content"])

        asked = asyncio.create_task(client.ask({}, keep))
        await asyncio.to_thread(came.wait, 60)
        asked.cancel()
        await asyncio.wait([asked])
        go_on.set()
        await client.close()
        return read

    with serving(answer) as fake:
        assert asyncio.run(asking(fake)) == ["paid for"]


def test_an_error_that_comes_when_nobody_waits_for_it_any_more_is_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()

    def answer(request: dict[str, Any]) -> Answer:
        assert go_on.wait(60)
        return trouble(401)

    async def asking(fake: FakeEndpoint) -> None:
        client = Client(fake.base_url, "")
        asked = asyncio.create_task(client.ask({}, as_it_is))
        while not fake.asked:
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
        go_on.set()
        while client._under_way:
            await asyncio.sleep(0)
        await client.close()

    gc.collect()  # what other tests of this process left
    caplog.clear()
    with serving(answer) as fake:
        asyncio.run(asking(fake))
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_closing_does_without_an_answer_that_does_not_come() -> None:
    go_on = threading.Event()

    def answer(request: dict[str, Any]) -> Answer:
        assert go_on.wait(60)
        return said("too late")

    async def asking(fake: FakeEndpoint) -> None:
        client = Client(fake.base_url, "", grace=0.01)
        asked = asyncio.create_task(client.ask({}, as_it_is))
        while not fake.asked:
            await asyncio.sleep(0)
        asked.cancel()
        await client.close()
        go_on.set()

    with serving(answer) as fake:
        asyncio.run(asking(fake))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (trouble(401, "wrong key sk-secret"), "401: wrong key ***"),
        (trouble(429, "pay first", code="insufficient_quota"), "429 insufficient_quota: pay first"),
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
        (trouble(400, "no", code="sk-secret"), "400 ***: no"),
    ],
)
def test_what_is_refused_is_asked_once(answer: Answer, expected: str) -> None:
    with serving(in_turn(answer)) as fake, pytest.raises(Refused) as refused:
        ask(fake, Time())
    assert str(refused.value) == expected


def test_requests_keep_to_the_rate() -> None:
    time = Time()
    begun: list[float] = []

    def answer(request: dict[str, Any]) -> Answer:
        begun.append(time.now)
        return said("yes")

    async def asking(fake: FakeEndpoint) -> None:
        client = Client(fake.base_url, "", rate=30, sleep=time.sleep, clock=time.clock)
        for _ in range(5):
            await client.ask({}, as_it_is)
        await client.close()

    with serving(answer) as fake:
        asyncio.run(asking(fake))
    assert begun == [0, 2, 4, 6, 8]
    assert fake.keys == [None] * 5


@pytest.mark.parametrize("address", ["", "127.0.0.1:8000", "ftp://host", "http://", "http://host:port"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="address"):
        Client(address, "")


def test_a_key_that_is_none_is_refused_without_being_shown() -> None:
    with pytest.raises(UsageError, match="OPENAI_API_KEY") as refused:
        Client("http://host.example", "sk-one\nsk-two")
    assert "sk-" not in str(refused.value)


@pytest.mark.parametrize("length", range(285, 305))
def test_no_part_of_a_key_is_shown_where_a_long_error_ends(length: int) -> None:
    with serving(in_turn(trouble(400, "x" * length + "sk-secret"))) as fake, pytest.raises(Refused) as refused:
        ask(fake, Time())
    assert "s" not in str(refused.value)


def test_secrets_in_the_address_are_not_shown() -> None:
    client = Client("http://me:hidden@host.example/v1/?key=hidden", "")
    assert client.shown == "http://host.example/v1"
    asyncio.run(client.close())


def test_a_query_in_the_address_goes_with_each_request() -> None:
    with serving(lambda request: said("yes")) as fake:
        fake.base_url += "/?api-version=1"
        ask(fake, Time())
    assert fake.paths == ["/v1/chat/completions?api-version=1"]
